#include "tools/moesim/train/train_journal.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/digest.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/model/megatron/megatron_arguments.hpp"
#include "sim/scenario/document_cache.hpp"
#include "tools/moesim/base/commit.hpp"
#include "tools/moesim/base/output.hpp"

namespace moesim::tool {
namespace {

// Status, refusal, fits, tight, software; then name and cell in turn.
constexpr std::size_t head_cells = 5;
constexpr const char* shipped_kinds[] = {"hardware",    "models", "clusters",
                                         "dispatchers", "layers", "residuals"};

// They decide neither which steps there are nor their figures.
bool is_of_the_output(const std::string& flag) {
  return flag == "out" || flag == "format" || flag == "jobs" || flag == "resume";
}

bool is_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

void add_scores(Digest& digest, const std::string& text, scenario::DocumentCache& documents) {
  const routing::ScoreSource scores = documents.scores(text);
  if (scores.trace != nullptr) digest.add(fmt::format("{:x}", scores.trace->digest()));
  if (scores.trace == nullptr && !scores.file.empty()) digest.add(read_file(scores.file));
}

// The file that a value names, if any.
void add_contents(Digest& digest, const std::string& flag, const std::string& value,
                  scenario::DocumentCache& documents) {
  try {
    if (flag == "routing") add_scores(digest, value, documents);
    const std::string file = model::MegatronArguments::file_of(value);
    if (is_file(file)) digest.add(read_file(file));
  } catch (const Error&) {  // the point itself says why
    digest.add("unreadable");
  }
}

// How many lines of `whole` a text lacks that else is the same; 0: it is not.
std::size_t missing_lines(const std::string& text, const std::string& whole) {
  const std::vector<std::string_view> has = split(text, '\n');
  const std::vector<std::string_view> all = split(whole, '\n');
  std::size_t found = 0;
  for (const std::string_view line : all) {
    if (found < has.size() && has[found] == line) ++found;
  }
  return found == has.size() ? all.size() - has.size() : 0;
}

const std::string* text_in(const Cell& cell) { return std::get_if<std::string>(&cell); }

}  // namespace

study::Row saved_row(const TrainPoint& point) {
  study::Row row = {point.row.has_value(), point.refusal, point.fits, point.is_tight,
                    point.software};
  for (std::size_t at = 0; point.row && at < point.row->names.size(); ++at) {
    row.emplace_back(point.row->names[at]);
    row.push_back(point.row->cells[at]);
  }
  return row;
}

std::optional<TrainPoint> point_of(const study::Row& row) {
  if (row.size() < head_cells || (row.size() - head_cells) % 2 != 0) return std::nullopt;
  const bool* const has_row = std::get_if<bool>(&row[0]);
  const std::string* const refusal = text_in(row[1]);
  const bool* const fits = std::get_if<bool>(&row[2]);
  const bool* const tight = std::get_if<bool>(&row[3]);
  const std::string* const software = text_in(row[4]);
  if (has_row == nullptr || refusal == nullptr || fits == nullptr || tight == nullptr ||
      software == nullptr) {
    return std::nullopt;
  }
  TrainPoint point;
  point.refusal = *refusal;
  point.fits = *fits;
  point.is_tight = *tight;
  point.software = *software;
  point.done = true;
  if (*has_row) point.row.emplace();
  for (std::size_t at = head_cells; *has_row && at < row.size(); at += 2) {
    const std::string* const name = text_in(row[at]);
    if (name == nullptr) return std::nullopt;
    point.row->add(*name, row[at + 1]);
  }
  return point;
}

std::string fingerprint(const TrainGrid& grid) {
  Digest digest;
  digest.add("train " MOESIM_VERSION " ").add(source_commit());
  for (const char* const kind : shipped_kinds) {
    for (const std::string& name : shipped_names(kind)) {
      digest.add(name).add(read_file(find_document(kind, name)));
    }
  }
  scenario::DocumentCache documents;
  std::set<std::pair<std::string, std::string>> added;  // every value once
  for (const CommandLine& line : grid.lines) {
    for (const auto& [flag, value] : line.values) {
      if (is_of_the_output(flag)) continue;
      digest.add(flag).add(value);
      if (added.emplace(flag, value).second) add_contents(digest, flag, value, documents);
    }
    digest.add("");
  }
  return fmt::format("{:016x}", digest.value());
}

TrainJournal::TrainJournal(const CommandLine& line, const TrainGrid& grid,
                           std::vector<TrainPoint>& points)
    : path_(study::journal_path(line.get("out"))) {
  const bool resume = line.has("resume");
  if (resume && path_.empty()) {
    throw UsageError("--resume: give the --out FILE of the interrupted run");
  }
  if (path_.empty()) return;
  if (resume && !is_file(path_)) {
    finished_ = is_file(line.get("out"));
    if (finished_) {
      note(fmt::format("--resume: {} is finished: its steps are predicted again, to compare",
                       line.get("out")));
      return;
    }
    note(fmt::format("--resume: no interrupted run beside {}: starting from the first step",
                     line.get("out")));
  }
  journal_ = std::make_unique<study::Journal>(path_, fingerprint(grid), resume);
  for (const auto& [at, row] : journal_->rows()) {
    if (at >= points.size()) continue;
    std::optional<TrainPoint> point = point_of(row);
    if (!point) continue;
    points[at] = std::move(*point);
    ++resumed_;
  }
}

void TrainJournal::add(std::size_t at, const TrainPoint& point) {
  if (!journal_) return;
  const std::lock_guard lock(adding_);
  journal_->add(at, saved_row(point));
}

void TrainJournal::compare(const std::string& path, const std::string& text) const {
  const std::string written = read_file(path);
  if (written == text) return;
  const std::size_t missing = missing_lines(written, text);
  if (missing > 0) {
    throw UsageError(fmt::format(
        "--resume: {} lacks {} of the lines that these options give, and has no journal beside it: "
        "leave --resume out to replace it",
        path, missing));
  }
  throw UsageError(
      fmt::format("--resume: {} is finished, and is not what these options give today: choose "
                  "another --out, or leave --resume out to replace it",
                  path));
}

void TrainJournal::remove() {
  if (journal_) ::unlink(path_.c_str());
}

Flag train_resume_flag() {
  return {"resume", "", "off", "continue the interrupted run of several steps that --out names"};
}

}  // namespace moesim::tool
