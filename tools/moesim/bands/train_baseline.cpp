#include "tools/moesim/bands/train_baseline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/profile/profile.hpp"
#include "sim/report/formats.hpp"
#include "sim/uncertainty/step_distance.hpp"
#include "tools/moesim/bands/capacity_pair.hpp"
#include "tools/moesim/bands/own_ratio.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/named_cells.hpp"
#include "tools/moesim/part_columns.hpp"

namespace moesim::tool {
namespace {

struct Written {
  std::string model;
  std::string profile;
  std::string cluster;
  std::string software;  // published, or a document of one's own; "": not said
  double speed = 0;
  std::vector<double> parts;            // uncertainty::part_times(); empty: the file does not tell
  std::vector<std::string> unmeasured;  // columns not_measured, not_measured_deviation
  double unmeasured_deviation = 0;
  std::optional<std::string> all_but_capacity;
  std::optional<uncertainty::OwnStep> own;  // of one's own software, where the file tells
};

// `ms`: the time of a column, absent where there is none.
std::vector<double> written_parts(
    double speed, const std::function<std::optional<double>(const std::string& column)>& ms) {
  std::vector<double> parts;
  double step_ms = 0;
  bool any = false;
  for (const std::string& column : training_part_columns()) {
    const std::optional<double> part = ms(column);
    any |= part.has_value();
    parts.push_back(part.value_or(0));
    step_ms += parts.back();
  }
  if (!any || step_ms <= 0) return {};
  for (double& part : parts) part *= 1e6 / speed / step_ms;
  return parts;
}

constexpr const char* speed_column = "tokens_per_s_per_gpu";

using TextIn = std::function<std::string(const std::string& column)>;

std::optional<uncertainty::OwnStep> written_own(const TextIn& text_in, const cluster::Cluster& on,
                                                const std::vector<double>& parts) {
  if (parts.empty() || !names_own_software(text_in("software"))) return std::nullopt;
  return own_step(text_in, on, text_in("model"), parts);
}

// `on`: the cluster, of check_same().
Written read_baseline(const std::string& path, const cluster::Cluster& on) {
  if (path.size() > 5 && path.compare(path.size() - 5, 5, ".json") == 0) {
    const Document document = Document::load(path);
    const Node root = document.root();
    const double speed = root.positive(speed_column);
    const std::vector<double> parts = written_parts(speed, [&](const std::string& column) {
      return root.has(column) ? std::optional(root.number(column)) : std::nullopt;
    });
    const auto text_in = [&](const std::string& column) {
      const std::optional<Node> value = root.find(column);
      if (!value) return std::string();
      return value->json().is_string() ? value->as_text() : value->json().dump();
    };
    return {root.text("model"),
            root.text("profile"),
            root.text("cluster"),
            root.text_or("software", ""),
            speed,
            parts,
            root.has(not_measured_column) ? root.texts(not_measured_column)
                                          : std::vector<std::string>(),
            root.number_or(unmeasured_column, 0),
            all_but_capacity(text_in),
            written_own(text_in, on, parts)};
  }
  const CsvTable table = CsvTable::load(path);
  if (table.rows.size() != 1) {
    throw UsageError(
        fmt::format("--baseline {}: {} rows; expected one, as moesim train --format "
                    "csv --out FILE writes it",
                    path, table.rows.size()));
  }
  const double speed = table.positive(0, speed_column);
  const auto text_in = [&](const std::string& column) {
    const std::size_t at = table.find(column);
    return at == CsvTable::npos ? std::string() : table.rows[0][at];
  };
  const auto number_in = [&](const std::string& column) {
    return text_in(column).empty() ? std::nullopt : std::optional(table.number(0, column));
  };
  const std::vector<double> parts = written_parts(speed, number_in);
  return {table.text(0, "model"),
          table.text(0, "profile"),
          table.text(0, "cluster"),
          text_in("software"),
          speed,
          parts,
          listed(text_in(not_measured_column)),
          number_in(unmeasured_column).value_or(0),
          all_but_capacity(text_in),
          written_own(text_in, on, parts)};
}

// The name that the profile of a baseline gives itself: a row has what was typed, which may be the
// path of a copy. The text itself where there is no such profile here.
std::string profile_in(const std::string& typed) {
  try {
    return profile::Profile::load(typed, profile::Profile::Calibrated::taken).name();
  } catch (const Error&) {
    return typed;
  }
}

// The same of its cluster.
std::string cluster_in(const std::string& typed) {
  try {
    return cluster::Cluster::load(typed).name;
  } catch (const Error&) {
    return typed;
  }
}

// Whether both stand for one document of a kind ("models"): a shipped name and the path of its
// document do, two files that give themselves one name do not.
bool is_one_document(const std::string& kind, const std::string& one, const std::string& other) {
  if (one == other) return true;
  try {
    return read_file(find_document(kind, one)) == read_file(find_document(kind, other));
  } catch (const Error&) {
    return false;
  }
}

// Throws UsageError naming the file where the errors of the two steps do not cancel, or where their
// ratio would be that of a calibration.
void check_same(const std::string& path, const Written& baseline, const training::TrainingJob& job,
                const std::string& software) {
  if (baseline.profile != job.typed.profile &&
      profile_in(baseline.profile) != job.profile->name()) {
    throw UsageError(
        fmt::format("--baseline {}: a step of {}, this one is of {}: the errors of two machines do "
                    "not cancel",
                    path, baseline.profile, job.typed.profile));
  }
  if (baseline.cluster != job.typed.cluster && cluster_in(baseline.cluster) != job.cluster->name) {
    throw UsageError(fmt::format(
        "--baseline {}: a step on {}, this one is on {}: the errors of two clusters do not cancel",
        path, baseline.cluster, job.typed.cluster));
  }
  const bool was_fitted = names_own_software(baseline.software);
  const bool is_fitted = names_own_software(software);
  if (was_fitted || is_fitted) {
    if (was_fitted && is_fitted && is_one_document("hardware", baseline.software, software)) return;
    const auto by = [](bool fitted, const std::string& name) {
      return fitted ? "calibrated by " + name : std::string("not calibrated");
    };
    throw UsageError(fmt::format(
        "--baseline {}: its step is {}, this one is {}: their ratio would be that of the "
        "calibration: predict both with one --profile and --software",
        path, by(was_fitted, baseline.software), by(is_fitted, software)));
  }
  // A software that is not said changes no step: it may be the same.
  if (baseline.software.empty() || software.empty() || baseline.software == software) return;
  throw UsageError(fmt::format(
      "--baseline {}: a step of {}, this one is of {}: the errors of two softwares do not cancel",
      path, baseline.software, software));
}

}  // namespace

std::optional<double> BaselineRatio::beyond_noise() const {
  for (const uncertainty::BandLevel& each : band.levels) {
    if (!each.log_ratios.contains(-std::log(speed))) return each.level;
  }
  return std::nullopt;
}

namespace {

// The deviation of the log of the ratio, by what no published step has: what both have cancels.
double unmeasured_between(const Written& baseline, const TrainBand& answer) {
  std::vector<uncertainty::UnmeasuredTrait> own;  // of the step alone
  std::size_t shared = 0;
  for (const uncertainty::UnmeasuredTrait& each : answer.band.unmeasured) {
    const auto& others = baseline.unmeasured;
    const bool has = std::find(others.begin(), others.end(), text_of(each)) != others.end();
    shared += has ? 1 : 0;
    if (!has) own.push_back(each);
  }
  // How much of its deviation is that of what it has alone, the file does not tell.
  const bool all_shared = shared == baseline.unmeasured.size();
  return std::hypot(shipped_errors().deviation_of(own),
                    all_shared ? 0 : baseline.unmeasured_deviation);
}

}  // namespace

BaselineRatio requested_baseline(const std::string& path, const training::TrainingJob& job,
                                 const training::TrainingStep& step, const TrainBand& answer,
                                 const uncertainty::StepSoftware* own_software) {
  const Written baseline = read_baseline(path, *job.cluster);
  check_same(path, baseline, job, software_cell(answer));
  BaselineRatio ratio;
  ratio.path = path;
  ratio.speed = step.tokens_per_second_per_gpu / baseline.speed;
  const bool same_model = is_one_document("models", baseline.model, job.typed.model);
  const double distance =
      baseline.parts.empty()
          ? uncertainty::far_apart
          : uncertainty::step_distance(uncertainty::part_times(step), baseline.parts);
  const double unmeasured = unmeasured_between(baseline, answer);
  if (own_software != nullptr && baseline.own) {
    uncertainty::OwnStep other = *baseline.own;
    other.model = same_model ? job.model->name : model_in(baseline.model);
    ratio.band =
        own_ratio_band(*own_software, job.cluster->name, own_step(job, step), other, unmeasured);
    ratio.known_by = own_rows_text(*own_software);
  } else {
    ratio.band =
        shipped_errors().ratio_band(answer.subject.software, same_model, distance, unmeasured);
    ratio.known_by = fmt::format(
        "{} groups of pairs of steps{} on one machine{}", ratio.band.held_out,
        same_model ? "" : " of two models",
        same_model
            ? fmt::format(", for steps that differ by {:.0f} % of their parts", 100 * distance)
            : "");
  }
  const std::optional<std::string> alike = all_but_capacity(job);
  if (!alike || alike != baseline.all_but_capacity || baseline.parts.empty()) return ratio;
  const uncertainty::Band of_capacity =
      capacity_pair_band(uncertainty::part_times(step), baseline.parts, step_exchanges(job));
  if (own_software != nullptr && is_narrower(ratio.band, of_capacity)) return ratio;
  ratio.band = of_capacity;
  ratio.known_by = capacity_pairs_text() + ", as these do";
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
         fmt::format("{:.3f} times as fast as {}: {}; by {}\n", ratio.speed, ratio.path,
                     beyond ? fmt::format("more than noise at {:.0f} %", 100 * *beyond)
                            : "within the noise",
                     ratio.known_by);
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
