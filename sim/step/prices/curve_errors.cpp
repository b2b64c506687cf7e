#include "sim/step/prices/curve_errors.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/base/digest.hpp"
#include "sim/base/random.hpp"
#include "sim/base/statistics.hpp"

namespace moesim::step {
namespace {

constexpr double quantile_95 = 1.6448536269514722;  // of the standard normal distribution

// Folded to the 24 bits a stream's rank has.
std::uint32_t stream_of(const std::string& label) {
  const std::uint32_t hash = fnv1a_32(label);
  return (hash >> 24 ^ hash) & 0xffffffu;
}

}  // namespace

int CurveErrors::number_of(const std::string& label) {
  const auto [found, added] = numbers_.try_emplace(label, static_cast<int>(errors_.size()));
  if (added) errors_.push_back(draw(label));
  return found->second;
}

// Replicas, sorted by random keys, are assigned to the strata of the normal distribution.
std::vector<double> CurveErrors::draw(const std::string& label) const {
  std::vector<std::pair<PhiloxBlock, std::size_t>> keys;
  for (int replica = 0; replica < replicas_; ++replica) {
    const StreamKey key{seed_, Purpose::curve_residual, static_cast<std::uint32_t>(replica), 0,
                        stream_of(label)};
    keys.emplace_back(philox_block(key, 0), static_cast<std::size_t>(replica));
  }
  std::sort(keys.begin(), keys.end());
  std::vector<double> errors(keys.size());
  for (std::size_t stratum = 0; stratum < keys.size(); ++stratum) {
    errors[keys[stratum].second] =
        normal_quantile((static_cast<double>(stratum) + 0.5) / replicas_);
  }
  return errors;
}

double with_error(const profile::Estimate& estimate, double error) {
  const double bound = error < 0 ? estimate.time_us_p05 : estimate.time_us_p95;
  if (error == 0 || bound <= 0 || estimate.time_us <= 0) return estimate.time_us;
  return estimate.time_us * std::pow(bound / estimate.time_us, std::abs(error) / quantile_95);
}

double log_of_error(const profile::Estimate& estimate, double error) {
  const double bound = error < 0 ? estimate.time_us_p05 : estimate.time_us_p95;
  if (error == 0 || bound <= 0 || estimate.time_us <= 0) return 0;
  return std::log(bound / estimate.time_us) * std::abs(error) / quantile_95;
}

}  // namespace moesim::step
