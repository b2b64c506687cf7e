#include "sim/routing/simulation/pass_plan.hpp"

#include <algorithm>
#include <cmath>

namespace moesim::routing {

PassCost measured_cost(double seconds_of_one, double seconds_of_all, std::size_t jobs) {
  const double others = static_cast<double>(jobs) - 1;
  PassCost cost;
  // A first layer is slower than later ones, and a job takes at least a bit of it.
  const double least = seconds_of_all / (16 * static_cast<double>(jobs));
  cost.job = std::max((seconds_of_all - seconds_of_one) / others, least);
  cost.draw = std::max(seconds_of_all - cost.job * static_cast<double>(jobs), 0.0);
  return cost;
}

namespace {

// Whether logits may be drawn once more for a few first rows: where that takes little.
bool has_early_pass(const PassCost& cost, double layers, std::size_t left, const PassLimit& limit) {
  constexpr double little_seconds = 0.1;
  constexpr double little_share = 0.05;
  const double of_thread = layers / static_cast<double>(limit.threads);
  const double whole = cost.of_layer(left) * of_thread;
  return cost.draw * of_thread <= std::max(little_seconds, little_share * whole);
}

}  // namespace

std::size_t jobs_of_pass(const PassCost& cost, double layers, std::size_t left, int passes,
                         const PassLimit& limit) {
  if (limit.seconds <= 0 || cost.job <= 0) return left;
  constexpr double least_share = 0.1;
  const double share = std::max(least_share, std::pow(0.5, passes + 1));
  const double in_time =
      (limit.seconds * static_cast<double>(limit.threads) / layers - cost.draw) / cost.job;
  const double by_share = std::ceil(cost.draw * (1 / share - 1) / cost.job);
  constexpr double early_jobs = 4;
  const bool early = passes == 0 && has_early_pass(cost, layers, left, limit);
  const double rows = early ? early_jobs : std::max({in_time, by_share, 1.0});
  const double wanted = std::max(rows, static_cast<double>(limit.threads));
  // A quarter more is not worth a pass.
  if (wanted * 1.25 >= static_cast<double>(left)) return left;
  return static_cast<std::size_t>(wanted);
}

}  // namespace moesim::routing
