#include "tools/moesim/bands/written_step.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "sim/base/error.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/text.hpp"
#include "sim/job/job_options.hpp"
#include "sim/report/formats.hpp"
#include "tools/moesim/bands/capacity_pair.hpp"
#include "tools/moesim/bands/own_ratio.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/rows/named_cells.hpp"
#include "tools/moesim/rows/part_columns.hpp"
#include "tools/moesim/rows/routing_cells.hpp"

namespace moesim::tool {
namespace {

constexpr const char* speed_column = "tokens_per_s_per_gpu";

// The columns of one row as text, from FILE or FILE:ROW, a CSV or JSON; the first row is 1.
class WrittenRow {
 public:
  explicit WrittenRow(const std::string& typed) : path_(typed), file_(typed) {
    const std::size_t colon = typed.rfind(':');
    if (colon != std::string::npos && colon > 0 && !std::filesystem::exists(typed)) {
      number_ = parse_number<std::size_t>(std::string_view(typed).substr(colon + 1));
      if (number_) file_ = typed.substr(0, colon);
    }
    if (file_.ends_with(".json")) {
      read_json();
    } else {
      read_csv();
    }
  }

  // "" where there is no such column.
  std::string text(const std::string& column) const {
    const auto found = cells_.find(column);
    return found == cells_.end() ? "" : found->second;
  }
  std::string needed(const std::string& column) const {
    if (cells_.count(column) == 0) {
      fail(fmt::format("no '{}'; expected what moesim train --format csv or json wrote", column));
    }
    return text(column);
  }
  // Nothing where there is no such column or its cell is empty.
  std::optional<double> number(const std::string& column) const {
    const std::string cell = text(column);
    if (cell.empty()) return std::nullopt;
    const std::optional<double> value = parse_number<double>(cell);
    if (!value || !std::isfinite(*value)) fail(fmt::format("{}: '{}' is no number", column, cell));
    return value;
  }
  // Nothing where there is no such column or its cell is empty.
  std::optional<int> size(const std::string& column) const {
    const std::string cell = text(column);
    if (cell.empty()) return std::nullopt;
    const std::optional<int> value = layout_size(cell);
    if (!value) fail(fmt::format("{}: '{}' is no whole number from 1 to 1048576", column, cell));
    return value;
  }
  double positive(const std::string& column) const {
    const std::string cell = needed(column);
    const double value = number(column).value_or(0);
    if (value <= 0) fail(fmt::format("{}: '{}' is not above 0", column, cell));
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw UsageError(fmt::format("--baseline {}: {}", path_, message));
  }

  // The place of the row among so many.
  std::size_t place_among(std::size_t rows) const {
    if (rows == 0) fail("no rows; expected what moesim train --format csv --out FILE writes");
    if (!number_ && rows == 1) return 0;
    if (number_ && *number_ >= 1 && *number_ <= rows) return *number_ - 1;
    fail(number_ ? fmt::format("there is no row {}: rows are 1 to {}", *number_, rows)
                 : fmt::format("{} rows, and one is compared with: --baseline {}:1 takes the first",
                               rows, file_));
  }

  void read_csv() {
    const CsvTable table = CsvTable::load(file_);
    const std::vector<std::string>& row = table.rows[place_among(table.rows.size())];
    for (std::size_t column = 0; column < table.columns.size(); ++column) {
      cells_[table.columns[column]] = row[column];
    }
  }

  // A list becomes text as CSV has it.
  void read_json() {
    const Document document = Document::load(file_);
    const nlohmann::json& root = document.root().json();
    const std::size_t place = place_among(root.is_array() ? root.size() : 1);
    const nlohmann::json& row = root.is_array() ? root[place] : root;
    if (!row.is_object()) fail("no row; expected what moesim train --format json wrote");
    const auto text_of = [](const nlohmann::json& value) {
      if (value.is_null()) return std::string();
      return value.is_string() ? value.get<std::string>() : value.dump();
    };
    for (const auto& [column, value] : row.items()) {
      std::string& cell = cells_[column];
      if (!value.is_array()) {
        cell = text_of(value);
        continue;
      }
      for (const nlohmann::json& item : value) {
        if (&item != &value.front()) cell += list_separator;
        cell += text_of(item);
      }
    }
  }

  const std::string& path_;  // as typed
  std::string file_;
  std::optional<std::size_t> number_;
  std::map<std::string, std::string> cells_;
};

using TextIn = std::function<std::string(const std::string& column)>;

// As uncertainty::part_times().
std::vector<double> parts_of(const WrittenRow& row, double speed) {
  std::vector<double> parts;
  double step_ms = 0;
  bool any = false;
  for (const std::string& column : training_part_columns()) {
    const std::optional<double> part = row.number(column);
    any |= part.has_value();
    parts.push_back(part.value_or(0));
    step_ms += parts.back();
  }
  if (!any || step_ms <= 0) return {};
  for (double& part : parts) part *= 1e6 / speed / step_ms;
  return parts;
}

bool is_machine(const std::string& option) { return option == "profile" || option == "cluster"; }

std::string all_but_machine(const TextIn& text_in) {
  std::string text = "router=" + text_in("router") + "\n";
  for (const job::JobOption& option : job::job_options()) {
    if (is_machine(option.name)) continue;
    text += fmt::format("{}={}\n", option.name, plain_number(text_in(option.column())));
  }
  return text;
}

// Nothing where it is not known here: the file may be of another place.
std::optional<cluster::Cluster> known_cluster(const std::string& name) {
  try {
    return cluster::Cluster::load(name);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<uncertainty::StepExchanges> exchanges_of(const WrittenRow& row,
                                                       const cluster::Cluster& cluster) {
  return step_exchanges([&](const std::string& column) { return row.size(column); }, cluster);
}

// What only comparisons of two clusters or machines take.
void add_place(const WrittenRow& row, WrittenStep& written) {
  const std::optional<cluster::Cluster> on = known_cluster(written.cluster);
  if (!on) return;
  written.exchanges = exchanges_of(row, *on);
  if (!written.exchanges) return;
  const std::optional<double> slower = row.number(host_slower_column);
  if (!slower || written.parts.empty()) return;
  uncertainty::AssumedMoves& moves = written.moves.emplace();
  moves.host_slower = *slower;
  moves.host_faster = row.number(host_faster_column).value_or(0);
  if (written.exchanges->are_measured) return;
  moves.crossing = class_shares(written.parts, *written.exchanges)
                       .work[static_cast<std::size_t>(uncertainty::WorkClass::across)];
}

}  // namespace

std::string all_but_machine(const training::TrainingJob& job, const training::TrainingStep& step) {
  std::map<std::string, Cell> of_routing;
  if (job.routing) {
    const training::DrawnRouting& drawn = *job.routing;
    for (auto& cells : {routing_cells(drawn, *step.routing), rare_routing_cells(drawn)}) {
      of_routing.insert(cells.begin(), cells.end());
    }
    const routing::RouterConfig& router = drawn.router;
    if (router.has_capacity()) of_routing["capacity_factor"] = router.capacity_factor;
    if (drawn.rank_capacity > 0) of_routing["rank_capacity"] = figure_cell(drawn.rank_capacity);
    if (drawn.trace_step > 0) of_routing["trace_step"] = std::int64_t{drawn.trace_step};
  }
  return all_but_machine([&](const std::string& column) {
    const auto routed = of_routing.find(column);
    if (routed != of_routing.end()) return report::text_of(routed->second);
    for (const job::JobOption& option : job::job_options()) {
      if (option.column() == column && option.in_rows_of(job)) {
        return report::text_of(option.value(job));
      }
    }
    return std::string();
  });
}

WrittenStep read_written_step(const std::string& path, const cluster::Cluster& beside) {
  const WrittenRow row(path);
  const TextIn text_in = [&](const std::string& column) { return row.text(column); };
  WrittenStep written;
  written.speed = row.positive(speed_column);
  written.model = row.needed("model");
  written.profile = row.needed("profile");
  written.cluster = row.needed("cluster");
  written.software = row.text("software");
  written.precision = row.text("precision");
  written.gpus = row.number("gpus").value_or(0);
  written.parts = parts_of(row, written.speed);
  written.unmeasured = unmeasured_of(text_in);
  written.all_but_machine = all_but_machine(text_in);
  written.all_but_capacity = all_but_capacity(text_in);
  if (!written.parts.empty() && study::names_own_software(written.software)) {
    const auto exchanges = exchanges_of(row, beside);
    const double step_ms = row.positive("step_ms");
    if (exchanges) {
      written.own = own_step(written.model, written.precision, written.parts, step_ms, *exchanges,
                             row.number(host_gain_column));
    }
  }
  add_place(row, written);
  return written;
}

}  // namespace moesim::tool
