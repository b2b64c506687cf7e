#include "sim/step/layer.hpp"

#include <algorithm>
#include <numeric>

namespace moesim::step {
namespace {

using profile::Collective;
using profile::Estimate;

// Kernels run one after another; their curves err independently, but the sum of the quantiles is
// kept, which is the wider bar.
Estimate sum(const Kernels& kernels) {
  Estimate total{0, 0, 0, profile::Origin::measured, profile::Support::measured_point};
  for (const Kernel& kernel : kernels) {
    total.time_us += kernel.count * kernel.estimate.time_us;
    total.time_us_p05 += kernel.count * kernel.estimate.time_us_p05;
    total.time_us_p95 += kernel.count * kernel.estimate.time_us_p95;
    total.origin = std::max(total.origin, kernel.estimate.origin);
    total.support = std::max(total.support, kernel.estimate.support);
  }
  return total;
}

}  // namespace

std::vector<LayerStage> moe_layer_stages(const Scenario& scenario, Pass pass,
                                         bool exchange_counts) {
  const KernelPricer pricer(scenario);
  const std::int64_t rows = scenario.tokens_per_gpu * scenario.router.top_k;
  const std::int64_t capacity = rows / scenario.experts;
  std::vector<int> members(static_cast<std::size_t>(scenario.expert_parallel));
  std::iota(members.begin(), members.end(), 0);
  std::vector<LayerStage> stages;
  const auto add = [&](const std::string& name, const Kernels& kernels) {
    if (!kernels.empty()) stages.push_back({name, sum(kernels)});
  };
  const auto exchange = [&](const std::string& name, Collective kind, double bytes) {
    if (members.size() > 1) add(name, {pricer.exchange(kind, members, bytes, name)});
  };
  const double tokens = pricer.dispatch_bytes(capacity);
  const double probabilities = 4.0 * static_cast<double>(rows);
  const double counts = 8.0 * scenario.experts * scenario.expert_parallel;
  if (pass == Pass::forward) {
    add("router", pricer.router(pass));
    if (exchange_counts) exchange("counts all-gather", Collective::all_gather, counts);
    add("permute", pricer.dispatch(pass, capacity));
    exchange("dispatch all-to-all", Collective::all_to_all, tokens);
    if (exchange_counts)
      exchange("probabilities all-to-all", Collective::all_to_all, probabilities);
    add("expert FFN", pricer.experts(pass, capacity, 0));
    exchange("combine all-to-all", Collective::all_to_all, tokens);
    add("unpermute", pricer.combine(pass, capacity));
    return stages;
  }
  add("unpermute backward", pricer.combine(pass, capacity));
  exchange("combine all-to-all backward", Collective::all_to_all, tokens);
  add("expert FFN backward", pricer.experts(pass, capacity, 0));
  exchange("dispatch all-to-all backward", Collective::all_to_all, tokens);
  if (exchange_counts) exchange("probabilities all-to-all", Collective::all_to_all, probabilities);
  add("permute backward", pricer.dispatch(pass, capacity));
  add("router backward", pricer.router(pass));
  return stages;
}

double total_us(const std::vector<LayerStage>& stages) {
  double total = 0;
  for (const LayerStage& stage : stages) total += stage.estimate.time_us;
  return total;
}

}  // namespace moesim::step
