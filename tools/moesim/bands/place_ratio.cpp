#include "tools/moesim/bands/place_ratio.hpp"

#include <fmt/format.h>

#include <cmath>

#include "sim/cluster/domain_links.hpp"
#include "sim/job/job_options.hpp"
#include "sim/profile/profile.hpp"
#include "sim/report/formats.hpp"
#include "sim/uncertainty/ratios/link_ratio.hpp"
#include "sim/uncertainty/steps/step_distance.hpp"
#include "tools/moesim/bands/capacity_pair.hpp"
#include "tools/moesim/bands/traits_apart.hpp"

namespace moesim::tool {
namespace {

using training::TrainingJob;
using uncertainty::Basis;

const char* const pairs_of = "megatron-bridge";  // software that ran on more than one machine

std::string value_of(const job::JobOption& option, const TrainingJob& job) {
  return option.value && option.in_rows_of(job) ? report::text_of(option.value(job)) : "";
}

// Whether they differ in their cluster alone. Routing that is drawn may be drawn in other ways.
bool differ_in_place_alone(const TrainingJob& one, const TrainingJob& other) {
  if (one.routing || other.routing) return false;
  for (const job::JobOption& option : job::job_options()) {
    const bool is_place = option.name == "profile" || option.name == "cluster";
    if (!is_place && value_of(option, one) != value_of(option, other)) return false;
  }
  return true;
}

// Why nothing is known of the ratio; "": it is.
std::string reason_of(const PlacedStep& step, const PlacedStep& other) {
  if (!step.answer.own.empty() || !other.answer.own.empty()) {
    return "a document of moesim calibrate is of one machine: compare without it";
  }
  const bool one_gpu = step.job.profile->device().name == other.job.profile->device().name;
  if (!one_gpu || step.job.profile->name() == other.job.profile->name()) return "";
  return "two profiles of one kind of GPU, whose ratio is of the profiles";
}

// On two kinds of GPU.
void compare_machines(const PlacedStep& step, const PlacedStep& other, double unmeasured,
                      PlaceRatio& ratio) {
  const bool same_width = step.answer.subject.low_precision == other.answer.subject.low_precision;
  const double precision =
      same_width ? 0 : std::sqrt(2.0) * shipped_errors().residuals().components.precision;
  const double distance = uncertainty::share_distance(uncertainty::part_times(step.step),
                                                      uncertainty::part_times(other.step));
  ratio.band = shipped_errors().machine_ratio_band(
      step.answer.subject.software, moves_between(step.answer.moves, other.answer.moves), distance,
      std::hypot(unmeasured, precision));
  const bool is_known = ratio.band.basis == Basis::software;
  ratio.known_by = fmt::format(
      "{} groups of pairs of machines that ran one release of {}, for steps whose parts have "
      "shares that differ by {:.0f} %{}",
      ratio.band.held_out, is_known ? step.answer.subject.software : pairs_of, 100 * distance,
      is_known ? "" : ", wider, as another program is assumed to run on both");
}

// On GPUs of one kind in two clusters.
void compare_clusters(const PlacedStep& step, const PlacedStep& other, double unmeasured,
                      PlaceRatio& ratio) {
  const std::vector<double> parts = uncertainty::part_times(step.step);
  const std::vector<double> other_parts = uncertainty::part_times(other.step);
  const double links = uncertainty::link_deviation(
      {parts, step_exchanges(step.job)}, {other_parts, step_exchanges(other.job)},
      cluster::other_domain_links(*step.job.cluster, *other.job.cluster));
  if (differ_in_place_alone(step.job, other.job)) {
    ratio.band.basis = Basis::software;
    ratio.band.levels = uncertainty::link_ratio_levels(links);
    ratio.known_by = fmt::format(
        "the noise of two runs and the errors of exchanges ({:.1f} % of the step)", 100 * links);
    return;
  }
  const double distance = uncertainty::step_distance(parts, other_parts);
  ratio.band =
      shipped_errors().ratio_band(step.answer.subject.software, true, distance, unmeasured);
  uncertainty::widen_levels(links, ratio.band.levels);
  ratio.known_by = fmt::format(
      "{} groups of pairs of steps on one machine, for steps that differ by {:.0f} % of their "
      "parts, and the errors of exchanges on two clusters ({:.1f} %)",
      ratio.band.held_out, 100 * distance, 100 * links);
}

}  // namespace

PlaceRatio place_ratio(const PlacedStep& step, const PlacedStep& other) {
  PlaceRatio ratio;
  ratio.speed = step.step.tokens_per_second_per_gpu / other.step.tokens_per_second_per_gpu;
  ratio.not_known = reason_of(step, other);
  if (!ratio.not_known.empty()) return ratio;
  const double unmeasured = shipped_errors().deviation_of(
      traits_apart(step.answer.band.unmeasured, other.answer.band.unmeasured));
  if (step.job.profile->device().name == other.job.profile->device().name) {
    compare_clusters(step, other, unmeasured, ratio);
  } else {
    compare_machines(step, other, unmeasured, ratio);
  }
  return ratio;
}

}  // namespace moesim::tool
