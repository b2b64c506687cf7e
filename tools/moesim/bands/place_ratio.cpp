#include "tools/moesim/bands/place_ratio.hpp"

#include "sim/profile/profile.hpp"
#include "sim/uncertainty/steps/step_distance.hpp"
#include "tools/moesim/bands/capacity_pair.hpp"
#include "tools/moesim/bands/written_step.hpp"

namespace moesim::tool {
namespace {

// Why nothing is known of the ratio; "": it is.
std::string reason_of(const PlacedStep& step, const PlacedStep& other) {
  if (!step.answer.own.empty() || !other.answer.own.empty()) {
    return "a document of moesim calibrate is of one machine: compare without it";
  }
  const bool one_gpu = step.job.profile->device().name == other.job.profile->device().name;
  if (!one_gpu || step.job.profile->name() == other.job.profile->name()) return "";
  return "two profiles of one kind of GPU, whose ratio is of the profiles";
}

}  // namespace

StepElsewhere step_elsewhere(const PlacedStep& placed) {
  return {.parts = uncertainty::part_times(placed.step),
          .unmeasured = unmeasured_of(placed.answer.band),
          .all_but_machine = all_but_machine(placed.job, placed.step),
          .low_precision = placed.answer.subject.low_precision,
          .moves = placed.answer.moves,
          .exchanges = step_exchanges(placed.job)};
}

PlaceRatio place_ratio(const PlacedStep& step, const PlacedStep& other) {
  PlaceRatio ratio;
  ratio.speed = step.step.tokens_per_second_per_gpu / other.step.tokens_per_second_per_gpu;
  ratio.not_known = reason_of(step, other);
  if (!ratio.not_known.empty()) return ratio;
  const std::string& software = step.answer.subject.software;
  const StepElsewhere here = step_elsewhere(step);
  const StepElsewhere there = step_elsewhere(other);
  const bool one_gpu = step.job.profile->device().name == other.job.profile->device().name;
  const char* const same = software.empty() ? "GPUs are the same; software taken to be the same"
                                            : "GPUs and software are the same";
  ratio.known =
      one_gpu ? compare_clusters(software, here, *step.job.cluster, there, *other.job.cluster, same)
              : compare_machines(software, here, there);
  return ratio;
}

}  // namespace moesim::tool
