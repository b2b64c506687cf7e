#include "sim/study/explain/computed_again.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <initializer_list>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace moesim::study {
namespace {

constexpr double worth_naming = 0.02;  // of the forward passes: one layer of 50
constexpr std::array<KernelKind, 7> of_layers{
    KernelKind::attention,        KernelKind::dense_ffn, KernelKind::router,
    KernelKind::dispatch_combine, KernelKind::expert,    KernelKind::rectify,
    KernelKind::exposed_exchange};

std::size_t index_of(KernelKind kind) { return static_cast<std::size_t>(kind); }

enum class Pass { forward, backward, unknown };

bool contains_any(const std::string& name, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return name.find(word) != std::string::npos; });
}

Pass pass_of(const std::string& name, const std::set<std::string>& all) {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  if (contains_any(lower, {"bwd", "bprop", "backward"})) return Pass::backward;
  if (contains_any(lower, {"fwd", "fprop", "forward"})) return Pass::forward;
  return all.contains(name + "_backward") ? Pass::forward : Pass::unknown;
}

// Calls of the most frequent kernel of each pass: a pass may have several kernels of other names.
struct PassCalls {
  std::int64_t forward = 0;
  std::int64_t backward = 0;
  double ratio() const {
    return forward > 0 && backward > 0
               ? static_cast<double>(forward) / static_cast<double>(backward)
               : 0;
  }
};

struct Calls {
  std::array<PassCalls, kernel_kind_count> of_kind{};
  std::int64_t exchanges = 0;
};

Calls calls_of(const std::vector<KernelSum>& kernels, std::int64_t exchanges) {
  std::set<std::string> names;
  for (const KernelSum& kernel : kernels) names.insert(kernel.name);
  Calls calls;
  calls.exchanges = exchanges;
  for (const KernelSum& kernel : kernels) {
    PassCalls& kind = calls.of_kind[index_of(kernel.kind)];
    const Pass pass = pass_of(kernel.name, names);
    if (pass == Pass::forward) kind.forward = std::max(kind.forward, kernel.calls);
    if (pass == Pass::backward) kind.backward = std::max(kind.backward, kernel.calls);
  }
  return calls;
}

std::vector<KernelSum> kernels_of(const SimulatedGpu& gpu) {
  std::map<std::pair<std::string, KernelKind>, std::int64_t> calls;
  for (std::size_t bar = 0; bar < gpu.bars.size(); ++bar) {
    ++calls[{gpu.events[bar]->name, gpu.bars[bar].kernel_class.kind}];
  }
  std::vector<KernelSum> kernels;
  for (const auto& [key, count] : calls) kernels.push_back({key.first, key.second, count, 0});
  return kernels;
}

// Exposed time of forward passes. An exchange is of the pass that the last kernel before it is of.
ExposedTime forward_time(const SimulatedGpu& gpu) {
  std::set<std::string> names;
  for (const engine::TimelineEvent* event : gpu.events) names.insert(event->name);
  std::vector<std::size_t> order(gpu.bars.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t one, std::size_t other) {
    return gpu.bars[one].start_us < gpu.bars[other].start_us;
  });
  std::vector<Bar> bars;
  Pass pass = Pass::forward;
  for (const std::size_t at : order) {
    Bar bar = gpu.bars[at];
    const Pass own =
        bar.kernel_class.is_exchange ? Pass::unknown : pass_of(gpu.events[at]->name, names);
    if (own != Pass::unknown) pass = own;
    if (pass != Pass::forward) bar.kernel_class.kind = KernelKind::unknown;
    bars.push_back(bar);
  }
  return exposed_time(std::move(bars), 0, gpu.end_us);
}

// Whether a factor is more like `full` than like 1, both as factors of calls.
bool is_like(double factor, double full) { return std::log(factor) / std::log(full) >= 0.5; }

}  // namespace

double ComputedAgain::total_ms() const {
  return std::accumulate(more_ms.begin(), more_ms.end(), 0.0);
}

std::optional<ComputedAgain> computed_again(const engine::Timeline& expected,
                                            const TracedStep& measured) {
  const std::vector<SimulatedGpu> gpus = simulated_gpus(expected);
  if (gpus.empty()) return std::nullopt;
  const SimulatedGpu& gpu = gpus[critical_gpu(exposed_times(expected)).index];
  const Calls simulated =
      calls_of(kernels_of(gpu), static_cast<std::int64_t>(large_exchanges(gpu.bars)));
  const Calls seen = calls_of(measured.kernels, measured.exchanges);
  const auto factor_of = [&](KernelKind kind) {
    const double before = simulated.of_kind[index_of(kind)].ratio();
    const double now = seen.of_kind[index_of(kind)].ratio();
    return before > 0 && now > 0 ? now / before : 0;
  };
  const double factor = factor_of(KernelKind::attention);
  if (factor == 0 || std::abs(factor - 1) < worth_naming) return std::nullopt;
  ComputedAgain again;
  again.is_more = factor > 1;
  const double ratio = simulated.of_kind[index_of(KernelKind::attention)].ratio();
  const double passes = ratio * factor;  // forward over backward
  again.is_every = std::abs(passes - std::round(passes)) < worth_naming;
  bool exchanges_too = true;
  if (simulated.exchanges > 0) {
    const double calls =
        static_cast<double>(seen.exchanges) / static_cast<double>(simulated.exchanges);
    exchanges_too = calls > 0 && is_like(calls, (passes + 1) / (ratio + 1));
    again.calls.push_back({step::StepPart::exposed_exchange, simulated.exchanges, seen.exchanges});
  }
  const double of_experts = factor_of(KernelKind::expert);
  const bool experts_too = of_experts > 0 ? is_like(of_experts, factor) : exchanges_too;
  const ExposedTime forward = forward_time(gpu);
  for (const KernelKind kind : of_layers) {
    const double own = factor_of(kind);
    const bool is_exchange = kind == KernelKind::exposed_exchange;
    const bool too = is_exchange ? exchanges_too : own > 0 ? is_like(own, factor) : experts_too;
    if (too) again.more_ms[index_of(kind)] = forward.kind_ms[index_of(kind)] * (factor - 1);
    if (own == 0 || (kind != KernelKind::attention && kind != KernelKind::expert)) continue;
    again.calls.push_back({static_cast<step::StepPart>(kind),
                           simulated.of_kind[index_of(kind)].forward,
                           seen.of_kind[index_of(kind)].forward});
  }
  std::stable_sort(
      again.calls.begin(), again.calls.end(),
      [](const CallCounts& one, const CallCounts& other) { return one.part < other.part; });
  again.is_whole = experts_too && exchanges_too;
  return again;
}

double attention_passes(const TracedStep& measured) {
  return calls_of(measured.kernels, 0).of_kind[index_of(KernelKind::attention)].ratio();
}

}  // namespace moesim::study
