#include "sim/study/explain/exposed_time.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace moesim::study {
namespace {

constexpr double us_per_ms = 1e3;
// A share of the step: GPUs that end within it end together, as differences below it are not named
// either.
constexpr double together = 0.01;
// A share of the step: times in exchanges that differ by less differ only as the digits of a trace
// do.
constexpr double equal = 1e-5;
constexpr double large = 0.1;  // of the mean exchange
using Span = std::pair<double, double>;

double& slot(ExposedTime& time, const Bar& bar) {
  return time.kind_ms[static_cast<std::size_t>(bar.kernel_class.kind)];
}

double at(const ExposedTime& time, KernelKind kind) {
  return time.kind_ms[static_cast<std::size_t>(kind)];
}

void sort_by_start(std::vector<Bar>& bars) {
  std::stable_sort(bars.begin(), bars.end(),
                   [](const Bar& one, const Bar& other) { return one.start_us < other.start_us; });
}

bool is_expert_exchange(const Bar& bar) {
  return bar.kernel_class.is_exchange && bar.kernel_class.kind == KernelKind::exposed_exchange;
}

// A step without its waits for other stages.
double own_ms(const ExposedTime& time) { return time.total_ms - at(time, KernelKind::pipeline); }

// The length of begin to end that no span covers. Spans are apart and ascend.
double uncovered(const std::vector<Span>& spans, double begin, double end) {
  double left = end - begin;
  auto span = std::lower_bound(spans.begin(), spans.end(), begin,
                               [](const Span& one, double time) { return one.second <= time; });
  for (; span != spans.end() && span->first < end; ++span) {
    left -= std::min(end, span->second) - std::max(begin, span->first);
  }
  return std::max(0.0, left);
}

}  // namespace

ExposedTime exposed_time(std::vector<Bar> bars, double begin_us, double end_us) {
  ExposedTime result;
  result.total_ms = (end_us - begin_us) / us_per_ms;
  for (Bar& bar : bars) {
    bar.start_us = std::max(bar.start_us, begin_us);
    bar.end_us = std::min(bar.end_us, end_us);
  }
  sort_by_start(bars);
  std::vector<Span> computing;
  double busy = 0;
  double reached = begin_us;
  for (const Bar& bar : bars) {
    const double start = std::max(reached, bar.start_us);
    if (bar.kernel_class.is_exchange || bar.end_us <= start) continue;
    slot(result, bar) += (bar.end_us - start) / us_per_ms;
    busy += bar.end_us - start;
    if (!computing.empty() && computing.back().second == start) {
      computing.back().second = bar.end_us;
    } else {
      computing.emplace_back(start, bar.end_us);
    }
    reached = bar.end_us;
  }
  reached = begin_us;
  for (const Bar& bar : bars) {
    const double start = std::max(reached, bar.start_us);
    if (!bar.kernel_class.is_exchange || bar.end_us <= start) continue;
    const double exposed = uncovered(computing, start, bar.end_us);
    slot(result, bar) += exposed / us_per_ms;
    result.exchange_ms += exposed / us_per_ms;
    busy += exposed;
    reached = bar.end_us;
  }
  result.idle_ms = std::max(0.0, end_us - begin_us - busy) / us_per_ms;
  return result;
}

CriticalGpu critical_gpu(const std::vector<ExposedTime>& gpus) {
  double longest = 0;
  bool is_pipeline = false;
  for (const ExposedTime& gpu : gpus) {
    longest = std::max(longest, own_ms(gpu));
    is_pipeline = is_pipeline || at(gpu, KernelKind::pipeline) > 0;
  }
  const double least = longest * (1 - (is_pipeline ? 0 : together));
  std::optional<std::size_t> found;
  for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu) {
    if (own_ms(gpus[gpu]) < least) continue;
    if (found && gpus[gpu].exchange_ms >= gpus[*found].exchange_ms - equal * longest) continue;
    found = gpu;
  }
  const std::size_t index = found.value_or(0);
  return {index, longest - own_ms(gpus[index])};
}

ExposedTime extended(ExposedTime time, double more_ms) {
  time.idle_ms += more_ms;
  time.total_ms += more_ms;
  return time;
}

std::size_t large_exchanges(const std::vector<Bar>& bars) {
  std::vector<double> lengths;
  double sum = 0;
  for (const Bar& bar : bars) {
    if (!is_expert_exchange(bar)) continue;
    lengths.push_back(bar.end_us - bar.start_us);
    sum += lengths.back();
  }
  const auto is_large = [&](double us) {
    return us * static_cast<double>(lengths.size()) >= large * sum;
  };
  return static_cast<std::size_t>(std::count_if(lengths.begin(), lengths.end(), is_large));
}

std::vector<double> expert_times(std::vector<Bar> bars) {
  sort_by_start(bars);
  std::vector<double> times{0};
  for (const Bar& bar : bars) {
    if (is_expert_exchange(bar)) times.push_back(0);
    if (bar.kernel_class.kind == KernelKind::expert) times.back() += bar.end_us - bar.start_us;
  }
  return times;
}

std::vector<SimulatedGpu> simulated_gpus(const engine::Timeline& timeline) {
  const std::vector<std::string>& names = step::part_names();
  std::map<int, SimulatedGpu> ranks;
  for (const engine::TimelineEvent& event : timeline) {
    if (event.is_range) continue;
    const auto found = std::find(names.begin(), names.end(), event.category);
    KernelClass kernel_class;
    if (found != names.end()) kernel_class.kind = static_cast<KernelKind>(found - names.begin());
    kernel_class.is_exchange = event.stream != "compute";
    SimulatedGpu& gpu = ranks[event.rank];
    const double end_us = (event.start + event.duration).us();
    gpu.bars.push_back({event.start.us(), end_us, kernel_class});
    gpu.events.push_back(&event);
    gpu.end_us = std::max(gpu.end_us, end_us);
  }
  std::vector<SimulatedGpu> gpus;
  for (auto& [number, gpu] : ranks) gpus.push_back(std::move(gpu));
  return gpus;
}

std::vector<ExposedTime> exposed_times(const engine::Timeline& timeline) {
  std::vector<ExposedTime> times;
  for (SimulatedGpu& gpu : simulated_gpus(timeline)) {
    times.push_back(exposed_time(std::move(gpu.bars), 0, gpu.end_us));
  }
  return times;
}

ExposedTime exposed_time(const engine::Timeline& timeline) {
  const std::vector<ExposedTime> gpus = exposed_times(timeline);
  if (gpus.empty()) return {};
  const CriticalGpu critical = critical_gpu(gpus);
  return extended(gpus[critical.index], critical.shorter_ms);
}

}  // namespace moesim::study
