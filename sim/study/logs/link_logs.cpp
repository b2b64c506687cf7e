#include "sim/study/logs/link_logs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <sstream>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/launcher_prefix.hpp"
#include "sim/base/text.hpp"
#include "sim/base/units.hpp"

namespace moesim::study {
namespace {

// std::regex recurses by the character. It is also slow: it runs on lines that have the words it
// looks for.
constexpr std::size_t longest_line = 1024;

double number_at(const std::vector<std::string>& words, std::size_t column, const std::string& file,
                 std::size_t line) {
  const std::optional<double> value =
      column < words.size() ? parse_number<double>(words[column]) : std::nullopt;
  if (value && std::isfinite(*value) && *value >= 0) return *value;
  throw UsageError(fmt::format("{}: line {}: expected a number in column {}: '{}'", file, line,
                               column + 1, column < words.size() ? words[column] : "cut off"));
}

// The place in a row of the figure with this name, by the words of perftest's header of columns.
// "BW average[Gb/sec]" is two words of one column.
std::optional<std::size_t> column_of(const std::vector<std::string>& header,
                                     const std::string& name) {
  std::size_t column = 0;
  for (const std::string& word : header) {
    if (word.starts_with(name)) return column;
    if (word != "BW" && word != "percentile[usec]") ++column;
  }
  return std::nullopt;
}

// perftest's MB are of 2^20 bytes (src/perftest_parameters.c: MBS), its Gb of 1e9 bits.
double gbit_per_s_of(const std::string& header) {
  return has_part(header, "Gb/sec]") ? 1 : 8 * bytes_per_mib / 1e9;
}

class PerftestOutput {
 public:
  explicit PerftestOutput(const std::string& file) : file_(file) {}

  std::vector<PerftestRun> read() {
    std::istringstream text(read_file(file_));
    for (std::string line; std::getline(text, line);) {
      ++line_;
      if (line.size() <= longest_line) take(without_launcher_prefix(line));
    }
    std::erase_if(
        runs_, [](const PerftestRun& run) { return run.gbit_per_s == 0 && run.latency_us == 0; });
    if (runs_.empty() && !prefix_.empty()) {
      throw UsageError(fmt::format(
          "{}: lines have '{}' before what perftest printed: take such prefixes off (sed, cut "
          "-c{}-); those of mpirun --tag-output and srun --label may stay",
          file_, printable(prefix_), prefix_.size() + 1));
    }
    if (runs_.empty()) {
      throw UsageError(
          fmt::format("{}: no row of results below a '#bytes' header: perftest's "
                      "output is cut off or its run failed",
                      file_));
    }
    return std::move(runs_);
  }

 private:
  void take(const std::string& line) {
    // " #bytes     #iterations ...", of which perftest writes one space.
    const std::size_t heading = line.find("#bytes");
    if (heading != std::string::npos && line.find_first_not_of(" \t") != heading) {
      prefix_ = line.substr(0, line[heading - 1] == ' ' ? heading - 1 : heading);
    }
    static const std::regex title(
        R"(^\s*((RDMA_Write|RDMA_Read|Send)( Bidirectional| Post List| Infinitely)* (BW|Latency)) Test)");
    static const std::regex nic(R"(\bDevice\s*:\s*(\S+))");
    std::smatch match;
    if (has_part(line, " Test") && std::regex_search(line, match, title)) {
      runs_.push_back({match[1]});
      header_.clear();
    } else if (!runs_.empty() && has_part(line, "Device") && std::regex_search(line, match, nic)) {
      runs_.back().nic = match[1];
    } else if (!runs_.empty() && has_part(line, "#bytes")) {
      header_ = words_of(line.substr(line.find('#')));
      columns_ = 0;
      to_gbit_ = gbit_per_s_of(line);
      // Both directions are added up.
      if (has_part(runs_.back().test, "Bidirectional")) to_gbit_ /= 2;
    } else if (!header_.empty()) {
      take_row(words_of(line));
    }
  }

  void take_row(const std::vector<std::string>& words) {
    if (words.empty() || words[0].find_first_not_of("0123456789") != std::string::npos) return;
    PerftestRun& run = runs_.back();
    // The last row of a job that was killed is left out; cut off before others it is refused below.
    if (run.cut_line > 0) {
      throw UsageError(fmt::format("{}: line {}: this row is cut off", file_, run.cut_line));
    }
    if (words.size() < columns_) {
      run.cut_line = line_;
      return;
    }
    columns_ = words.size();
    if (const auto average = column_of(header_, "average[")) {
      run.largest_bytes = std::max(run.largest_bytes, number_at(words, 0, file_, line_));
      run.gbit_per_s =
          std::max(run.gbit_per_s, number_at(words, *average, file_, line_) * to_gbit_);
      return;
    }
    std::optional<std::size_t> latency = column_of(header_, "t_typical[");
    if (!latency) latency = column_of(header_, "t_avg[");
    if (!latency) return;
    // The smallest size comes first.
    if (run.latency_us > 0) return;
    run.latency_us = number_at(words, *latency, file_, line_);
    run.latency_bytes = number_at(words, 0, file_, line_);
  }

  std::string file_;
  std::size_t line_ = 0;
  std::vector<PerftestRun> runs_;
  std::vector<std::string> header_;
  double to_gbit_ = 1;
  std::size_t columns_ = 0;  // of the row before
  std::string prefix_;       // before the heading of a table: of a launcher that is not known
};

// Copies of one pair at a time in one direction.
bool is_pairwise_copy(const std::string& test) {
  return test.starts_with("device_to_device_memcpy_") ||
         test == "multinode_device_to_device_memcpy_read_ce" ||
         test == "multinode_device_to_device_memcpy_write_ce" ||
         test == "multinode_device_to_device_memcpy_read_sm" ||
         test == "multinode_device_to_device_memcpy_write_sm";
}

// The diagonal is "N/A", or 0 in old versions.
void take_cell(const std::string& cell, CopyMatrix& matrix) {
  const std::optional<double> value = parse_number<double>(cell);
  if (value && *value > 0 && std::isfinite(*value)) matrix.gb_per_s.push_back(*value);
}

std::vector<CopyMatrix> read_nvbandwidth_json(const std::string& file) {
  const Document document = Document::load(file);
  std::vector<CopyMatrix> found;
  for (const Node& test : document.root().at("nvbandwidth").items("testcases")) {
    CopyMatrix matrix{test.text("name"), "", {}};
    if (!is_pairwise_copy(matrix.test) || !test.has("bandwidth_matrix")) continue;
    for (const Node& row : test.items("bandwidth_matrix")) {
      for (const Node& cell : row.items()) take_cell(cell.as_text(), matrix);
    }
    found.push_back(std::move(matrix));
  }
  return found;
}

std::vector<CopyMatrix> read_nvbandwidth_text(const std::string& file) {
  static const std::regex running(R"(^\s*Running\s+(\w+)\.)");
  static const std::regex device(R"(^\s*Device \d+:\s*(.*\S)\s*\()");
  std::vector<CopyMatrix> found;
  std::string name;
  bool reading = false;
  std::istringstream text(read_file(file));
  for (std::string line; std::getline(text, line);) {
    if (line.size() > longest_line) continue;
    std::smatch match;
    if (has_part(line, "Device ") && std::regex_search(line, match, device)) {
      name = match[1];
    } else if (has_part(line, "Running") && std::regex_search(line, match, running)) {
      reading = is_pairwise_copy(match[1]);
      if (reading) found.push_back({match[1], name, {}});
    } else if (reading && !has_part(line, "SUM ")) {
      const std::vector<std::string> words = words_of(line);
      // A row is the number of a GPU and its cells; the header of the columns has no decimals.
      const bool decimals = has_part(line, ".") || has_part(line, "N/A");
      if (words.size() < 2 || !decimals || !is_whole_number(words[0])) continue;
      for (std::size_t cell = 1; cell < words.size(); ++cell) take_cell(words[cell], found.back());
    }
  }
  return found;
}

}  // namespace

LogKind kind_of_log(const std::string& file) {
  const std::string text = read_file(file);
  if (has_part(text, "\"nvbandwidth\"")) return LogKind::nvbandwidth;
  if (has_part(text, "\"nccl_version\"") && has_part(text, "\"results\""))
    return LogKind::nccl_tests;
  if (has_part(text, "algbw") || has_part(text, "# nThread ")) return LogKind::nccl_tests;
  if (has_part(text, " BW Test") || has_part(text, " Latency Test")) return LogKind::perftest;
  if (has_part(text, "Running device_to_device_") || has_part(text, "nvbandwidth Version")) {
    return LogKind::nvbandwidth;
  }
  if (has_part(text, "[tuning]") || has_part(text, "Dispatch + combine bandwidth"))
    return LogKind::deepep;
  throw UsageError(fmt::format(
      "{}: this is no output of nccl-tests, perftest (ib_write_bw, ib_send_lat, ...), nvbandwidth "
      "or DeepEP's tests",
      file));
}

std::string PerftestRun::doubt(const std::string& file) const {
  return fmt::format(
      "warning: {}: line {}: this row, the last, is cut off, and is left out; larger sizes may be "
      "missing",
      file, cut_line);
}

std::vector<PerftestRun> read_perftest_log(const std::string& file) {
  return PerftestOutput(file).read();
}

std::vector<CopyMatrix> read_nvbandwidth_log(const std::string& file) {
  std::vector<CopyMatrix> found =
      file.ends_with(".json") ? read_nvbandwidth_json(file) : read_nvbandwidth_text(file);
  std::erase_if(found, [](const CopyMatrix& matrix) { return matrix.gb_per_s.empty(); });
  if (!found.empty()) return found;
  throw UsageError(
      fmt::format("{}: no figures of device_to_device_memcpy_*: run nvbandwidth with -p "
                  "device_to_device_memcpy on 2 or more GPUs",
                  file));
}

namespace {

// "... 49 + 501 us, 56.0 GB/s (RDMA)", "..., transmit: 501.2 us, notify: 49.1 us, ...", "..., t:
// 501.2 us": three versions. In the first the notify phase comes first.
double deepep_time_us(const std::string& line) {
  static const std::regex sum(R"([0-9.]+ \+ ([0-9.]+) us)");
  static const std::regex transmit(R"((?:transmit|\bt|avg_t): ([0-9.]+) us)");
  std::smatch match;
  if (!std::regex_search(line, match, sum) && !std::regex_search(line, match, transmit)) return 0;
  return parse_number<double>(match[1].str()).value_or(0);
}

double figure_in(const std::string& line, const std::regex& pattern) {
  std::smatch match;
  if (!std::regex_search(line, match, pattern)) return 0;
  return parse_number<double>(match[1].str()).value_or(0);
}

}  // namespace

std::vector<DeepEpBest> read_deepep_log(const std::string& file) {
  static const std::regex best(R"(\[tuning\] Best (dispatch|combine)(?: \((FP8|BF16)\))?)");
  static const std::regex rdma(R"(([0-9.]+) GB/s \(RDMA\))");
  static const std::regex nvlink(R"(([0-9.]+) GB/s \(NVL\))");
  static const std::regex sms(R"(SMs (\d{1,4})\b)");
  static const std::regex tokens(R"(num_tokens=(\d{1,9})\b)");
  static const std::regex hidden(R"(hidden=(\d{1,9})\b)");
  static const std::regex top_k(R"(num_topk=(\d{1,4})\b)");
  static const std::regex groups(R"(num_topk_groups=(\d{1,4})\b)");
  std::vector<DeepEpBest> found;
  DeepEpBest config;
  bool low_latency = false;
  std::istringstream text(read_file(file));
  for (std::string line; std::getline(text, line);) {
    if (line.size() > longest_line) continue;
    low_latency = low_latency || has_part(line, "Dispatch + combine bandwidth");
    if (has_part(line, "[config]")) {
      config.tokens = static_cast<int>(figure_in(line, tokens));
      config.hidden = static_cast<int>(figure_in(line, hidden));
      config.top_k = static_cast<int>(figure_in(line, top_k));
      config.node_groups = static_cast<int>(figure_in(line, groups));
    }
    std::smatch match;
    if (!has_part(line, "[tuning] Best ") || !std::regex_search(line, match, best)) continue;
    DeepEpBest entry = config;
    entry.stage = match[1];
    entry.row_format = match[2] == "FP8" ? "fp8" : "bf16";
    entry.sms = static_cast<int>(figure_in(line, sms));
    entry.time_us = deepep_time_us(line);
    entry.rdma_gb_per_s = figure_in(line, rdma);
    entry.nvlink_gb_per_s = figure_in(line, nvlink);
    found.push_back(entry);
  }
  if (found.empty() && !low_latency) {
    throw UsageError(
        fmt::format("{}: no '[tuning] Best dispatch' or 'Best combine' line: DeepEP's test did not "
                    "come to its end",
                    file));
  }
  return found;
}

}  // namespace moesim::study
