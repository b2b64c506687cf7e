#include "tools/moesim/bands/train_baseline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/cluster/domain_links.hpp"
#include "sim/job/job_options.hpp"
#include "sim/profile/profile.hpp"
#include "sim/report/formats.hpp"
#include "sim/uncertainty/link_ratio.hpp"
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
  std::string options{};                    // all_but_machine()
  std::string precision{};
  double gpus = 0;
  // Of its cluster; nothing: that is not known here, or the file does not tell the layout.
  std::optional<uncertainty::StepExchanges> exchanges{};
  std::optional<uncertainty::AssumedMoves> moves{};  // nothing: the file does not tell
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

bool is_machine(const std::string& option) { return option == "profile" || option == "cluster"; }

// What a row says of a step but its machine, "" of options that it does not have.
std::string all_but_machine(const TextIn& text_in) {
  std::string text = "router=" + text_in("router") + "\n";
  for (const job::JobOption& option : job::job_options()) {
    if (is_machine(option.name)) continue;
    text += fmt::format("{}={}\n", option.name, plain_number(text_in(option.column())));
  }
  return text;
}

// The same of a job. Nothing where its routing is drawn: it may be drawn in other ways.
std::optional<std::string> all_but_machine(const training::TrainingJob& job) {
  if (job.routing) return std::nullopt;
  return all_but_machine([&](const std::string& column) {
    for (const job::JobOption& option : job::job_options()) {
      if (option.column() == column && option.in_rows_of(job)) {
        return report::text_of(option.value(job));
      }
    }
    return std::string();
  });
}

// What only comparisons of two clusters or machines take.
void add_place(const TextIn& text_in, Written& written) {
  const auto number_in = [&](const std::string& column) {
    return std::strtod(text_in(column).c_str(), nullptr);
  };
  written.options = all_but_machine(text_in);
  written.precision = text_in("precision");
  written.gpus = number_in("gpus");
  if (text_in("ranks_per_domain").empty()) return;
  try {
    const cluster::Cluster on = cluster::Cluster::load(written.cluster);
    written.exchanges = step_exchanges(
        [&](const std::string& column) { return static_cast<int>(number_in(column)); }, on);
  } catch (const Error&) {
    return;
  }
  if (text_in(host_slower_column).empty() || written.parts.empty()) return;
  uncertainty::AssumedMoves& moves = written.moves.emplace();
  moves.host_slower = number_in(host_slower_column);
  moves.host_faster = number_in(host_faster_column);
  if (written.exchanges->are_measured) return;
  moves.crossing = class_shares(written.parts, *written.exchanges)
                       .work[static_cast<std::size_t>(uncertainty::WorkClass::across)];
}

// `on`: the cluster of the step beside it.
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
    Written written{root.text("model"),
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
    add_place(text_in, written);
    return written;
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
  Written written{table.text(0, "model"),
                  table.text(0, "profile"),
                  table.text(0, "cluster"),
                  text_in("software"),
                  speed,
                  parts,
                  listed(text_in(not_measured_column)),
                  number_in(unmeasured_column).value_or(0),
                  all_but_capacity(text_in),
                  written_own(text_in, on, parts)};
  add_place(text_in, written);
  return written;
}

// The profile of a baseline, for the name that it gives itself: a row has what was typed, which may
// be the path of a copy. Null where there is no such profile here.
std::shared_ptr<const profile::Profile> profile_of(const std::string& typed) {
  try {
    return std::make_shared<const profile::Profile>(
        profile::Profile::load(typed, profile::Profile::Calibrated::taken));
  } catch (const Error&) {
    return nullptr;
  }
}

// The same of its cluster.
std::optional<cluster::Cluster> cluster_of(const std::string& typed) {
  try {
    return cluster::Cluster::load(typed);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Whether both stand for one document of a kind ("models"): a shipped name and the path of its
// document do, written in whatever way; two files that give themselves one name do not.
bool is_one_document(const std::string& kind, const std::string& one, const std::string& other) {
  if (one == other) return true;
  try {
    const auto content = [&](const std::string& name) {
      return Document::load(find_document(kind, name)).root().json();
    };
    return content(one) == content(other);
  } catch (const Error&) {
    return false;
  }
}

// Where two steps are.
enum class Places { one_cluster, two_clusters, two_machines };

// Throws UsageError naming the file where nothing is known of two such places.
Places places_of(const std::string& path, const Written& baseline,
                 const training::TrainingJob& job) {
  const bool same_text = baseline.profile == job.typed.profile;
  const auto profile = same_text ? job.profile : profile_of(baseline.profile);
  const auto cluster = baseline.cluster == job.typed.cluster ? std::optional(*job.cluster)
                                                             : cluster_of(baseline.cluster);
  if (!profile || !cluster) {
    throw UsageError(fmt::format(
        "--baseline {}: a step of {} on {}: no such {} here: give this command the files that it "
        "was made with",
        path, baseline.profile, baseline.cluster, profile ? "cluster" : "profile"));
  }
  const bool same_profile = profile->name() == job.profile->name();
  if (!same_profile && profile->device().name != job.profile->device().name) {
    return Places::two_machines;
  }
  if (!same_profile) {
    throw UsageError(
        fmt::format("--baseline {}: predicted by {}, this one by {}: two profiles of one kind of "
                    "GPU, whose ratio is of the profiles: give both the same",
                    path, baseline.profile, job.typed.profile));
  }
  return is_one_document("clusters", baseline.cluster, job.typed.cluster) ? Places::one_cluster
                                                                          : Places::two_clusters;
}

// Throws UsageError naming the file where the errors of the two steps do not cancel, or where their
// ratio would be that of a calibration.
void check_same(const std::string& path, const Written& baseline, const std::string& software,
                Places places) {
  const bool was_fitted = names_own_software(baseline.software);
  const bool is_fitted = names_own_software(software);
  if (was_fitted || is_fitted) {
    if (was_fitted && is_fitted && is_one_document("hardware", baseline.software, software)) {
      if (places == Places::one_cluster) return;
      throw UsageError(fmt::format(
          "--baseline {}: a step on another cluster, with {}, whose measured steps are of one "
          "cluster: predict both without it, the baseline too",
          path, software));
    }
    const auto by = [](bool fitted, const std::string& name) {
      return fitted ? "calibrated by " + name : std::string("not calibrated");
    };
    throw UsageError(fmt::format(
        "--baseline {}: its step is {}, this one is {}: their ratio would be that of the "
        "calibration: predict both {}",
        path, by(was_fitted, baseline.software), by(is_fitted, software),
        places == Places::two_machines ? "without it" : "with one --profile and --software"));
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

// On GPUs of one kind in two clusters. `software`: published, or "".
void compare_clusters(const Written& baseline, const training::TrainingJob& job,
                      const training::TrainingStep& step, const std::string& software,
                      double unmeasured, BaselineRatio& ratio) {
  const std::vector<double> parts = uncertainty::part_times(step);
  if (!baseline.exchanges || baseline.parts.empty()) {
    throw UsageError(
        fmt::format("--baseline {}: it does not tell the layout and the parts of its step on "
                    "another cluster: write it again",
                    ratio.path));
  }
  const double links = uncertainty::link_deviation(
      {parts, step_exchanges(job)}, {baseline.parts, *baseline.exchanges},
      cluster::other_domain_links(*job.cluster, cluster::Cluster::load(baseline.cluster)));
  if (all_but_machine(job) == baseline.options) {
    ratio.band.basis = uncertainty::Basis::software;
    ratio.band.levels = uncertainty::link_ratio_levels(links);
    ratio.known_by = fmt::format(
        "the noise of two runs and the errors of exchanges ({:.1f} % of the step's time): GPUs and "
        "software are the same",
        100 * links);
    return;
  }
  const double distance = uncertainty::step_distance(parts, baseline.parts);
  ratio.band = shipped_errors().ratio_band(software, true, distance, unmeasured);
  uncertainty::widen_levels(links, ratio.band.levels);
  ratio.known_by = fmt::format(
      "{} groups of pairs of steps on one machine, for steps that differ by {:.0f} % of their "
      "parts, and the errors of exchanges on two clusters ({:.1f} %)",
      ratio.band.held_out, 100 * distance, 100 * links);
}

// On two kinds of GPU.
void compare_machines(const Written& baseline, const training::TrainingStep& step,
                      const TrainBand& answer, const std::string& software, double unmeasured,
                      BaselineRatio& ratio) {
  if (!baseline.moves) {
    throw UsageError(fmt::format(
        "--baseline {}: it does not tell how much of its step on another machine waits for host "
        "and NICs: write it again",
        ratio.path));
  }
  const bool was_low = baseline.precision != model::name_of(model::Precision::bf16);
  const double precision = was_low == answer.subject.low_precision
                               ? 0
                               : shipped_errors().residuals().components.precision;
  const double distance =
      uncertainty::share_distance(uncertainty::part_times(step), baseline.parts);
  ratio.band = shipped_errors().machine_ratio_band(
      software, moves_between(answer.moves, *baseline.moves), distance,
      std::hypot(unmeasured, precision * std::sqrt(2.0)));
  ratio.known_by = fmt::format(
      "{} groups of pairs of machines that ran one release of {}, for steps whose parts have "
      "shares that differ by {:.0f} %{}",
      ratio.band.held_out,
      ratio.band.basis == uncertainty::Basis::software ? software : "megatron-bridge",
      100 * distance,
      ratio.band.basis == uncertainty::Basis::software
          ? ""
          : ", wider, as another program is assumed to run on both");
}

// Of steps on two clusters or machines.
BaselineRatio ratio_of_places(const std::string& path, const Written& baseline,
                              const training::TrainingJob& job, const training::TrainingStep& step,
                              const TrainBand& answer, Places places) {
  if (!is_one_document("models", baseline.model, job.typed.model)) {
    throw UsageError(fmt::format(
        "--baseline {}: a step of {} on another {}, this one is of {}: one model is compared on "
        "both",
        path, baseline.model, places == Places::two_clusters ? "cluster" : "machine",
        job.typed.model));
  }
  BaselineRatio ratio;
  ratio.path = path;
  ratio.speed = step.tokens_per_second_per_gpu / baseline.speed;
  const auto gpus = static_cast<double>(job.layout.sizes.gpus);
  ratio.is_per_gpu = baseline.gpus != gpus;
  const auto place = [&](double count, const std::string& profile, const std::string& cluster) {
    const std::string one = fmt::format("{} on {}", profile, cluster);
    return ratio.is_per_gpu ? fmt::format("{} x {}", count, one) : one;
  };
  ratio.here = place(gpus, job.typed.profile, job.typed.cluster);
  ratio.there = place(baseline.gpus, baseline.profile, baseline.cluster);
  const std::string& named = answer.subject.software;
  const std::string& software = named.empty() ? baseline.software : named;
  const double unmeasured = unmeasured_between(baseline, answer);
  if (places == Places::two_clusters) {
    compare_clusters(baseline, job, step, software, unmeasured, ratio);
  } else {
    compare_machines(baseline, step, answer, software, unmeasured, ratio);
  }
  return ratio;
}

// On one cluster.
bool is_same_step(const Written& baseline, const training::TrainingJob& job, double speed) {
  constexpr double rounding = 1e-6;  // of what a file has
  return std::abs(speed - 1) < rounding && all_but_machine(job) == baseline.options &&
         is_one_document("models", baseline.model, job.typed.model);
}

}  // namespace

BaselineRatio requested_baseline(const std::string& path, const training::TrainingJob& job,
                                 const training::TrainingStep& step, const TrainBand& answer,
                                 const uncertainty::StepSoftware* own_software) {
  const Written baseline = read_baseline(path, *job.cluster);
  const Places places = places_of(path, baseline, job);
  check_same(path, baseline, software_cell(answer), places);
  if (places != Places::one_cluster) {
    return ratio_of_places(path, baseline, job, step, answer, places);
  }
  BaselineRatio ratio;
  ratio.path = path;
  ratio.speed = step.tokens_per_second_per_gpu / baseline.speed;
  if (is_same_step(baseline, job, ratio.speed)) {
    ratio.band.basis = uncertainty::Basis::software;
    ratio.band.levels = uncertainty::link_ratio_levels(0);
    ratio.known_by = "the noise of two runs: it is the same step";
    return ratio;
  }
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
  const uncertainty::BandLevel& widest = ratio.band.widest();
  return report::align(lines, {false, true}) +
         fmt::format(
             "{} {:.3f} times as fast{} as {}, {:.2f} to {:.2f} ({:.0f} %): {}; by {}\n",
             ratio.here.empty() ? "this step is" : ratio.here + " is", ratio.speed,
             ratio.is_per_gpu ? " per GPU" : "",
             ratio.there.empty() ? ratio.path : fmt::format("{} ({})", ratio.there, ratio.path),
             ratio.speed * std::exp(widest.log_ratios.low),
             ratio.speed * std::exp(widest.log_ratios.high), 100 * widest.level,
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
