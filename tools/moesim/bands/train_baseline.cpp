#include "tools/moesim/bands/train_baseline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/formats/same_document.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/profile/profile.hpp"
#include "sim/report/formats.hpp"
#include "sim/uncertainty/ratios/link_ratio.hpp"
#include "sim/uncertainty/steps/step_distance.hpp"
#include "tools/moesim/bands/capacity_pair.hpp"
#include "tools/moesim/bands/own_ratio.hpp"
#include "tools/moesim/bands/place_ratio.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/bands/written_step.hpp"

namespace moesim::tool {
namespace {

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

// Whether the profile of a baseline is that of the job. A document of moesim calibrate stands for a
// shipped profile: check_same() says more of it.
bool is_one_profile(const profile::Profile& profile, const std::string& typed,
                    const training::TrainingJob& job) {
  if (!profile.calibration().empty() || !job.profile->calibration().empty()) {
    return profile.name() == job.profile->name();
  }
  return is_one_document("hardware", typed, job.typed.profile);
}

// Where two steps are.
enum class Places { one_cluster, two_clusters, two_machines };

// Throws UsageError naming the file where nothing is known of two such places.
Places places_of(const std::string& path, const WrittenStep& baseline,
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
  if (profile->device().name != job.profile->device().name) return Places::two_machines;
  if (!is_one_profile(*profile, baseline.profile, job)) {
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
void check_same(const std::string& path, const WrittenStep& baseline, const std::string& software,
                Places places) {
  const bool was_fitted = study::names_own_software(baseline.software);
  const bool is_fitted = study::names_own_software(software);
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

// What is taken for granted of two steps where the software of either is not named.
std::string assumed_text(const WrittenStep& baseline, const TrainBand& answer) {
  const bool is_named = !baseline.software.empty() && !software_cell(answer).empty();
  return is_named ? "" : "; software taken to be the same";
}

// Throws UsageError naming the file where it does not tell what two such places need.
StepElsewhere step_of_baseline(const std::string& path, const WrittenStep& baseline,
                               Places places) {
  StepElsewhere step{.parts = baseline.parts,
                     .unmeasured = baseline.unmeasured,
                     .all_but_machine = baseline.all_but_machine,
                     .low_precision = baseline.precision != model::name_of(model::Precision::bf16),
                     .moves = {}};
  if (places == Places::two_machines) {
    if (!baseline.moves) {
      throw UsageError(fmt::format(
          "--baseline {}: it does not tell how much of its step on another machine waits for host "
          "and NICs: write it again",
          path));
    }
    step.moves = *baseline.moves;
    return step;
  }
  if (!baseline.exchanges || baseline.parts.empty()) {
    throw UsageError(
        fmt::format("--baseline {}: it does not tell the layout and the parts of its step on "
                    "another cluster: write it again",
                    path));
  }
  step.exchanges = *baseline.exchanges;
  return step;
}

KnownRatio compare_places(const StepElsewhere& here, const StepElsewhere& there,
                          const WrittenStep& baseline, const training::TrainingJob& job,
                          const TrainBand& answer, Places places) {
  const std::string& named = answer.subject.software;
  const std::string& software = named.empty() ? baseline.software : named;
  const std::string assumed = assumed_text(baseline, answer);
  if (places == Places::two_machines) {
    KnownRatio known = compare_machines(software, here, there);
    known.known_by += assumed;
    return known;
  }
  const bool is_same = here.all_but_machine == there.all_but_machine;
  KnownRatio known = compare_clusters(
      software, here, *job.cluster, there, cluster::Cluster::load(baseline.cluster),
      assumed.empty() ? "GPUs and software are the same" : "GPUs are the same" + assumed);
  if (!is_same) known.known_by += assumed;
  return known;
}

// Of steps on two clusters or machines.
BaselineRatio ratio_of_places(const std::string& path, const WrittenStep& baseline,
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
  KnownRatio known =
      compare_places(step_elsewhere({job, step, answer}), step_of_baseline(path, baseline, places),
                     baseline, job, answer, places);
  ratio.band = std::move(known.band);
  ratio.known_by = std::move(known.known_by);
  return ratio;
}

// On one cluster.
bool is_same_step(const WrittenStep& baseline, const training::TrainingJob& job,
                  const training::TrainingStep& step, double speed) {
  constexpr double rounding = 1e-6;  // of what a file has
  return std::abs(speed - 1) < rounding && all_but_machine(job, step) == baseline.all_but_machine &&
         is_one_document("models", baseline.model, job.typed.model);
}

}  // namespace

namespace {

BaselineRatio ratio_to(const WrittenStep& baseline, const std::string& path,
                       const training::TrainingJob& job, const training::TrainingStep& step,
                       const TrainBand& answer, const uncertainty::StepSoftware* own_software) {
  const Places places = places_of(path, baseline, job);
  check_same(path, baseline, software_cell(answer), places);
  if (places != Places::one_cluster) {
    return ratio_of_places(path, baseline, job, step, answer, places);
  }
  BaselineRatio ratio;
  ratio.path = path;
  ratio.speed = step.tokens_per_second_per_gpu / baseline.speed;
  if (is_same_step(baseline, job, step, ratio.speed)) {
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
  const UnmeasuredOfRow of_this = unmeasured_of(answer.band);
  const double unmeasured = unmeasured_between(of_this, baseline.unmeasured);
  if (own_software != nullptr && baseline.own) {
    uncertainty::OwnStep other = *baseline.own;
    other.model = same_model ? job.model->name : model_in(baseline.model);
    ratio.band =
        own_ratio_band(*own_software, job.cluster->name, own_step(job, step), other, unmeasured);
    ratio.known_by = study::own_rows_text(*own_software);
  } else {
    ratio.band = study::published_errors().ratio_band(answer.subject.software, same_model, distance,
                                                      unmeasured);
    const bool is_named_once = baseline.software.empty() != software_cell(answer).empty();
    ratio.known_by = fmt::format(
        "{} groups of pairs of steps{} on one machine{}{}", ratio.band.held_out,
        same_model ? "" : " of two models",
        same_model
            ? fmt::format(", for steps that differ by {:.0f} % of their parts", 100 * distance)
            : "",
        is_named_once ? assumed_text(baseline, answer) : "");
  }
  widen_by_hidden(of_this, baseline.unmeasured, ratio.band);
  const std::optional<std::string> alike = all_but_capacity(job);
  if (!alike || alike != baseline.all_but_capacity || baseline.parts.empty()) return ratio;
  uncertainty::Band of_capacity =
      capacity_pair_band(uncertainty::part_times(step), baseline.parts, step_exchanges(job));
  widen_by_hidden(of_this, baseline.unmeasured, of_capacity);
  if (own_software != nullptr && is_narrower(ratio.band, of_capacity)) return ratio;
  ratio.band = of_capacity;
  ratio.known_by = capacity_pairs_text() + ", as these do";
  return ratio;
}

}  // namespace

BaselineRatio requested_baseline(const std::string& path, const training::TrainingJob& job,
                                 const training::TrainingStep& step, const TrainBand& answer,
                                 const uncertainty::StepSoftware* own_software) {
  const WrittenStep baseline = read_written_step(path, *job.cluster);
  BaselineRatio ratio = ratio_to(baseline, path, job, step, answer, own_software);
  ratio.known_by += untold_hidden_text(baseline.unmeasured);
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
