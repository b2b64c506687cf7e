#include "sim/study/validation/exchanges/two_from_one.hpp"

#include <cmath>
#include <cstddef>

#include "sim/study/validation/exchanges/dispatch_lines.hpp"

namespace moesim::study {

using profile::Estimate;
using profile::StageCost;

Estimate TwoFromOne::predict(const DispatchSample& sample) const {
  const Estimate middle = with(sample, {});
  Estimate estimate = middle;
  double below = std::pow(std::log(middle.time_us_p05 / middle.time_us), 2);
  double above = std::pow(std::log(middle.time_us_p95 / middle.time_us), 2);
  const auto join = [&](const Variation& fast, const Variation& slow) {
    below += std::pow(std::log(with(sample, fast).time_us / middle.time_us), 2);
    above += std::pow(std::log(with(sample, slow).time_us / middle.time_us), 2);
  };
  join({0, 1, 1}, {2, 1, 1});
  join({1, 1 / unknown_.copies, 1}, {1, unknown_.copies, 1});
  join({1, 1, 1 / unknown_.start}, {1, 1, unknown_.start});
  estimate.time_us_p05 = middle.time_us * std::exp(-std::sqrt(below));
  estimate.time_us_p95 = middle.time_us * std::exp(std::sqrt(above));
  return estimate;
}

Estimate TwoFromOne::with(const DispatchSample& sample, const Variation& by) const {
  StageCost cost = inside_;
  const double row_us = cost.copy_ns * 1e-3 +
                        (cost.sm_bytes_per_us > 0 ? sample.row_bytes / cost.sm_bytes_per_us : 0);
  const double token_us = cost.token_ns * 1e-3 + sample.load.copies / sample.load.tokens * row_us;
  cost.fill_us +=
      by.across * unknown_.chunk_tokens[static_cast<std::size_t>(sample.stage)] * token_us / 2;
  cost.fixed_us = by.start * cost.fixed_us + by.across * unknown_.latency_us;
  cost.token_ns *= by.copies;
  cost.copy_ns *= by.copies;
  cost.sm_bytes_per_us /= by.copies;
  return predicted(with_own_cost(dispatcher_, sample, cost), sample);
}

}  // namespace moesim::study
