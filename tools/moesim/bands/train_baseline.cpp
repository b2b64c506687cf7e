#include "tools/moesim/bands/train_baseline.hpp"

#include <fmt/format.h>

#include <cmath>

#include "sim/base/csv.hpp"
#include "sim/base/document.hpp"
#include "sim/base/error.hpp"
#include "sim/report/formats.hpp"
#include "tools/moesim/bands/train_band.hpp"

namespace moesim::tool {
namespace {

struct Written {
  std::string model;
  std::string profile;
  double speed = 0;
};

constexpr const char* speed_column = "tokens_per_s_per_gpu";

Written read_baseline(const std::string& path) {
  if (path.size() > 5 && path.compare(path.size() - 5, 5, ".json") == 0) {
    const Document document = Document::load(path);
    const Node root = document.root();
    return {root.text("model"), root.text("profile"), root.positive(speed_column)};
  }
  const CsvTable table = CsvTable::load(path);
  if (table.rows.size() != 1) {
    throw UsageError(
        fmt::format("--baseline {}: {} rows; expected one, as moesim train --format "
                    "csv --out FILE writes it",
                    path, table.rows.size()));
  }
  return {table.text(0, "model"), table.text(0, "profile"), table.positive(0, speed_column)};
}

}  // namespace

std::optional<double> BaselineRatio::beyond_noise() const {
  for (const uncertainty::BandLevel& each : band.levels) {
    if (!each.log_ratios.contains(-std::log(speed))) return each.level;
  }
  return std::nullopt;
}

BaselineRatio requested_baseline(const std::string& path, const training::TrainingJob& job,
                                 const training::TrainingStep& step, const std::string& software) {
  const Written baseline = read_baseline(path);
  if (baseline.profile != job.profile->name()) {
    throw UsageError(
        fmt::format("--baseline {}: a step of {}, this one is of {}: the errors of two machines do "
                    "not cancel",
                    path, baseline.profile, job.profile->name()));
  }
  BaselineRatio ratio;
  ratio.path = path;
  ratio.speed = step.tokens_per_second_per_gpu / baseline.speed;
  ratio.same_model = baseline.model == job.model->name;
  ratio.band = shipped_errors().ratio_band(software, ratio.same_model);
  return ratio;
}

std::string baseline_text(const BaselineRatio& ratio) {
  std::vector<std::vector<std::string>> lines = {{"beside the baseline", "speed, times"}};
  for (const uncertainty::BandLevel& each : ratio.band.levels) {
    lines.push_back({fmt::format("{:.0f} %", 100 * each.level),
                     fmt::format("{:.3f} to {:.3f}", ratio.speed * std::exp(each.log_ratios.low),
                                 ratio.speed * std::exp(each.log_ratios.high))});
  }
  const std::optional<double> beyond = ratio.beyond_noise();
  return report::align(lines, {false, true}) +
         fmt::format(
             "{:.3f} times as fast as {}: {}; by {} groups of pairs of steps{} on one machine\n",
             ratio.speed, ratio.path,
             beyond ? fmt::format("more than noise at {:.0f} %", 100 * *beyond)
                    : "within the noise",
             ratio.band.held_out, ratio.same_model ? "" : " of two models");
}

std::vector<std::pair<std::string, Cell>> baseline_cells(const BaselineRatio& ratio) {
  const uncertainty::BandLevel& widest = ratio.band.widest();
  return {
      {"baseline", ratio.path},
      {"speed_over_baseline", figure_cell(ratio.speed)},
      {"speed_over_baseline_low", figure_cell(ratio.speed * std::exp(widest.log_ratios.low))},
      {"speed_over_baseline_high", figure_cell(ratio.speed * std::exp(widest.log_ratios.high))},
      {"baseline_level", figure_cell(widest.level)},
      {"beyond_noise_level", ratio.beyond_noise() ? figure_cell(*ratio.beyond_noise()) : Cell()},
      {"within_noise", !ratio.beyond_noise()}};
}

}  // namespace moesim::tool
