#include "sim/study/explain/uneven_routing.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "sim/study/explain/slow_gpu.hpp"

namespace moesim::study {
namespace {

constexpr double clearly_more = 1.2;

// Sums over the layers, in us.
struct ExpertSums {
  double longest = 0;
  double mean = 0;
};

// `times` of each GPU by layer's pass.
std::optional<ExpertSums> sums_of(const std::vector<ExposedTime>& gpus,
                                  std::vector<std::vector<double>> times) {
  for (const SlowGpu& slow : slow_gpus(gpus)) {
    for (double& us : times[slow.index]) us /= slow.factor;
  }
  ExpertSums sums;
  for (std::size_t layer = 0; layer < times.front().size(); ++layer) {
    double longest = 0;
    double sum = 0;
    for (const std::vector<double>& gpu : times) {
      if (gpu.size() != times.front().size()) return std::nullopt;
      longest = std::max(longest, gpu[layer]);
      sum += gpu[layer];
    }
    sums.longest += longest;
    sums.mean += sum / static_cast<double>(times.size());
  }
  if (sums.mean <= 0) return std::nullopt;
  return sums;
}

}  // namespace

bool UnevenRouting::is_more_uneven() const { return measured > clearly_more * expected; }
bool UnevenRouting::is_more_even() const { return expected > clearly_more * measured; }

std::optional<UnevenRouting> uneven_routing(const engine::Timeline& expected,
                                            const TracedStep& measured, std::size_t group_gpus) {
  std::vector<SimulatedGpu> simulated = simulated_gpus(expected);
  const std::size_t traces = measured.all.size();
  if (traces < 2 || traces > simulated.size()) return std::nullopt;
  if (traces != simulated.size() && traces != group_gpus) return std::nullopt;
  std::vector<ExposedTime> gpus;
  std::vector<std::vector<double>> times;
  for (const TracedGpu& gpu : measured.all) {
    gpus.push_back(gpu.exposed);
    times.push_back(gpu.expert_us);
  }
  const std::optional<ExpertSums> seen = sums_of(gpus, std::move(times));
  gpus.clear();
  times.clear();
  simulated.resize(traces);
  for (SimulatedGpu& gpu : simulated) {
    times.push_back(expert_times(gpu.bars));
    gpus.push_back(exposed_time(std::move(gpu.bars), 0, gpu.end_us));
  }
  const std::optional<ExpertSums> drawn = sums_of(gpus, std::move(times));
  if (!seen || !drawn) return std::nullopt;
  UnevenRouting result;
  result.expected = drawn->longest / drawn->mean;
  result.measured = seen->longest / seen->mean;
  result.more_wait_ms = ((seen->longest - seen->mean) - (drawn->longest - drawn->mean)) / 1e3;
  return result;
}

}  // namespace moesim::study
