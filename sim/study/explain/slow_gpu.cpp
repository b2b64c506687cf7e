#include "sim/study/explain/slow_gpu.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "sim/base/statistics.hpp"
#include "sim/uncertainty/bands/simulated_band.hpp"

namespace moesim::study {
namespace {

constexpr double normal_over_median = 1.4826;  // deviation over median absolute deviation
constexpr double far_deviations = 3;
constexpr double most_of_it = 0.8;
constexpr double worth_naming = 0.01;  // of the step
constexpr std::array<KernelKind, 5> alike{KernelKind::attention, KernelKind::dense_ffn,
                                          KernelKind::router, KernelKind::optimizer,
                                          KernelKind::other};
constexpr std::array<KernelKind, 6> by_routing{
    KernelKind::dispatch_combine, KernelKind::expert,     KernelKind::rectify,
    KernelKind::any_product,      KernelKind::any_memory, KernelKind::unknown};

double at(const ExposedTime& time, KernelKind kind) {
  return time.kind_ms[static_cast<std::size_t>(kind)];
}

double alike_ms(const ExposedTime& time) {
  double sum = 0;
  for (const KernelKind kind : alike) sum += at(time, kind);
  return sum;
}

template <typename Value>
std::vector<double> of_others(const std::vector<ExposedTime>& gpus, std::size_t one, Value value) {
  std::vector<double> found;
  for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu) {
    if (gpu != one) found.push_back(value(gpus[gpu]));
  }
  return found;
}

// How far the others lie from their median, as a deviation of logs.
double spread(const std::vector<double>& others, double middle) {
  std::vector<double> away;
  for (const double value : others) {
    away.push_back(value > 0 ? std::abs(std::log(value / middle)) : 0);
  }
  return normal_over_median * median(std::move(away));
}

std::optional<SlowGpu> slow_gpu(const std::vector<ExposedTime>& gpus, std::size_t index) {
  const ExposedTime& gpu = gpus[index];
  const std::vector<double> others = of_others(gpus, index, alike_ms);
  const double middle = median(others);
  const double own = alike_ms(gpu);
  if (middle <= 0 || own <= middle) return std::nullopt;
  SlowGpu found;
  found.index = index;
  found.factor = own / middle;
  const double log_factor = std::log(found.factor);
  const double two_runs = normal_p95 * std::sqrt(2.0) * uncertainty::run_noise;
  if (log_factor <= std::max(two_runs, far_deviations * spread(others, middle))) {
    return std::nullopt;
  }
  found.of_kind.fill(1);
  for (const KernelKind kind : by_routing) {
    found.of_kind[static_cast<std::size_t>(kind)] = found.factor;
  }
  double slower_ms = 0;
  for (const KernelKind kind : alike) {
    const double usual =
        median(of_others(gpus, index, [&](const ExposedTime& time) { return at(time, kind); }));
    if (usual <= 0 || at(gpu, kind) <= usual) continue;
    const double factor = at(gpu, kind) / usual;
    found.of_kind[static_cast<std::size_t>(kind)] = factor;
    if (std::log(factor) >= log_factor / 2) slower_ms += at(gpu, kind);
  }
  if (slower_ms < most_of_it * own) return std::nullopt;
  const ExposedTime usual = found.at_speed_of_others(gpu);
  if (gpu.total_ms - usual.total_ms < worth_naming * gpu.total_ms) return std::nullopt;
  return found;
}

}  // namespace

ExposedTime SlowGpu::at_speed_of_others(const ExposedTime& time) const {
  ExposedTime result = time;
  for (std::size_t kind = 0; kind < kernel_kind_count; ++kind) {
    result.kind_ms[kind] /= of_kind[kind];
    result.total_ms -= time.kind_ms[kind] - result.kind_ms[kind];
  }
  return result;
}

std::vector<SlowGpu> slow_gpus(const std::vector<ExposedTime>& gpus) {
  if (gpus.size() < 2) return {};
  const auto waits_for_stages = [](const ExposedTime& gpu) {
    return at(gpu, KernelKind::pipeline) > 0;
  };
  if (std::any_of(gpus.begin(), gpus.end(), waits_for_stages)) return {};
  std::vector<SlowGpu> found;
  for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu) {
    if (const auto slow = slow_gpu(gpus, gpu)) found.push_back(*slow);
  }
  std::stable_sort(found.begin(), found.end(), [](const SlowGpu& one, const SlowGpu& other) {
    return one.factor > other.factor;
  });
  return found;
}

}  // namespace moesim::study
