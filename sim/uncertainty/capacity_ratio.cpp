#include "sim/uncertainty/capacity_ratio.hpp"

#include <cmath>
#include <numeric>

#include "sim/base/statistics.hpp"
#include "sim/training/prices/layer_prices.hpp"
#include "sim/uncertainty/simulated_band.hpp"

namespace moesim::uncertainty {
namespace {

using training::Part;

double square(double value) { return value * value; }

WorkClass class_of(Part part, bool cross_domains) {
  switch (part) {
    case Part::attention:
    case Part::dense_ffn:
    case Part::experts:
    case Part::head:
    case Part::recompute:
      return WorkClass::products;
    case Part::tensor:
    case Part::context:
    case Part::dispatch:
    case Part::combine:
    case Part::gradients:
    case Part::parameters:
      return cross_domains ? WorkClass::across : WorkClass::inside;
    default:
      return WorkClass::memory;
  }
}

bool follows_capacity(Part part) {
  return part == Part::experts || part == Part::router || part == Part::dispatch ||
         part == Part::combine;
}

}  // namespace

std::vector<BandLevel> capacity_ratio_levels(const std::vector<double>& one,
                                             const std::vector<double>& other, double scatter,
                                             const StepExchanges& exchanges) {
  const double one_us = std::accumulate(one.begin(), one.end(), 0.0);
  const double other_us = std::accumulate(other.begin(), other.end(), 0.0);
  WorkShares difference{};
  double variance = 2 * square(run_noise) + 2 * square(scatter);
  for (const auto& part : training::part_names) {
    const auto place = static_cast<std::size_t>(part.value);
    const double share = one[place] / one_us;
    const double other_share = other[place] / other_us;
    const WorkClass work = class_of(part.value, exchanges.cross_domains);
    difference[static_cast<std::size_t>(work)] += share - other_share;
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
