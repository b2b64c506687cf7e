#include "tools/moesim/train/replicas.hpp"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "sim/base/text.hpp"
#include "sim/routing/simulation/mean_loss.hpp"

namespace moesim::tool {

using training::TrainingStep;

int requested_replicas(const CommandLine& line) {
  constexpr std::int64_t most = 1 << 20;  // as simulate
  if (!line.has("replicas")) return 1;
  return static_cast<int>(parse_whole("--replicas", line.get("replicas"), 1, most));
}

TrainingStep median_of_replicas(
    training::TrainingJob& job, int replicas,
    const std::function<TrainingStep(training::TrainingJob& job)>& step) {
  if (!job.routing || replicas == 1) return step(job);
  const std::uint64_t seed = job.routing->seed;
  std::vector<TrainingStep> steps;
  std::vector<routing::TokenLoss> losses;
  for (int replica = 0; replica < replicas; ++replica) {
    job.routing->seed = seed + static_cast<std::uint64_t>(replica);
    steps.push_back(step(job));
    losses.push_back(steps.back().routing->loss);
  }
  job.routing->seed = seed;
  std::vector<std::size_t> order(steps.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(steps[a].step_us, a) < std::pair(steps[b].step_us, b);
  });
  TrainingStep& median = steps[order[(steps.size() - 1) / 2]];
  median.routing->loss = routing::mean_loss(losses);
  return std::move(median);
}

}  // namespace moesim::tool
