#include "sim/uncertainty/ratios/capacity_ratio.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>

#include "sim/base/numbers.hpp"
#include "sim/base/statistics.hpp"
#include "sim/training/prices/passes.hpp"
#include "sim/uncertainty/bands/simulated_band.hpp"
#include "sim/uncertainty/steps/assumed_deviations.hpp"

namespace moesim::uncertainty {
namespace {

using training::TrainingPart;

// Options of both commands. Capacities, their rounding and what fills them belong to the router;
// draws, replicas and seeds to how its routing is drawn.
constexpr std::string_view choices[] = {"router",
                                        "group-score",
                                        "score-function",
                                        "second-expert",
                                        "expert-bias",
                                        "router-dtype",
                                        "router-dialect",
                                        "weights",
                                        "weight-scale",
                                        "priority",
                                        "fill-order",
                                        "ir-compute",
                                        "ir-duplicates",
                                        "capacity-factor",
                                        "min-capacity",
                                        "routing",
                                        "fidelity",
                                        "capacity-convention",
                                        "capacity-alignment",
                                        "routing-draws",
                                        "trace-step",
                                        "replicas",
                                        "seed"};

// The class of a part; nothing for the host.
std::optional<WorkClass> class_of(TrainingPart part, const StepExchanges& exchanges) {
  const auto among = [&](int ranks) {
    return ranks > exchanges.ranks_per_domain ? WorkClass::across : WorkClass::inside;
  };
  switch (part) {
    case TrainingPart::attention:
    case TrainingPart::dense_ffn:
    case TrainingPart::experts:
    case TrainingPart::head:
    case TrainingPart::recompute:
      return WorkClass::products;
    case TrainingPart::tensor:
      return among(exchanges.tensor);
    case TrainingPart::context:
      return among(exchanges.context);
    case TrainingPart::dispatch:
    case TrainingPart::combine:
      return among(exchanges.experts);
    case TrainingPart::gradients:
    case TrainingPart::parameters:
      return among(exchanges.gradients);
    case TrainingPart::host:
      return std::nullopt;
    default:
      return WorkClass::memory;
  }
}

bool follows_capacity(TrainingPart part) {
  return part == TrainingPart::experts || part == TrainingPart::router ||
         part == TrainingPart::dispatch || part == TrainingPart::combine;
}

}  // namespace

bool is_capacity_choice(std::string_view option) {
  return std::find(std::begin(choices), std::end(choices), option) != std::end(choices);
}

CrossingParts crossing_of(const StepExchanges& exchanges) {
  CrossingParts crossing{};
  for (const auto& part : training::part_names) {
    crossing[at(part.value)] = class_of(part.value, exchanges) == WorkClass::across;
  }
  return crossing;
}

ClassShares class_shares(const std::vector<double>& parts, const StepExchanges& exchanges) {
  const double sum_us = std::accumulate(parts.begin(), parts.end(), 0.0);
  ClassShares shares;
  for (const auto& part : training::part_names) {
    const double share = parts[at(part.value)] / sum_us;
    const std::optional<WorkClass> work = class_of(part.value, exchanges);
    (work ? shares.work[static_cast<std::size_t>(*work)] : shares.host) += share;
  }
  return shares;
}

std::vector<BandLevel> capacity_ratio_levels(const std::vector<double>& one,
                                             const std::vector<double>& other, double scatter,
                                             const StepExchanges& exchanges) {
  const double one_us = std::accumulate(one.begin(), one.end(), 0.0);
  const double other_us = std::accumulate(other.begin(), other.end(), 0.0);
  WorkShares difference{};
  double variance = 2 * square(run_noise) + 2 * square(scatter);
  for (const auto& part : training::part_names) {
    const auto place = at(part.value);
    const double share = one[place] / one_us;
    const double other_share = other[place] / other_us;
    const std::optional<WorkClass> work = class_of(part.value, exchanges);
    if (work) {
      difference[static_cast<std::size_t>(*work)] += share - other_share;
    } else {
      variance += square(host_deviation * (share - other_share));
    }
    if (follows_capacity(part.value)) {
      variance += square(curve_error) * (square(share) + square(other_share));
    }
  }
  for (const auto& work : work_class_names) {
    variance += square(difference[static_cast<std::size_t>(work.value)] *
                       systematic_error(work.value, exchanges.are_measured));
  }
  std::vector<BandLevel> levels;
  for (const double level : usual_levels()) {
    const double half = normal_quantile((1 + level) / 2) * std::sqrt(variance);
    levels.push_back({level, {-half, half}});
  }
  return levels;
}

}  // namespace moesim::uncertainty
