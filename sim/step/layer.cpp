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

std::vector<LayerStage> moe_layer_stages(const scenario::Scenario& scenario, Pass pass,
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
  const double counts = pricer.counts_bytes();
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

namespace {

// Prices the stages of kernels/layer. The copies hold what differs by stage: which gate, and whose
// blend of IR rows.
class PaddedLayer {
 public:
  PaddedLayer(const scenario::Scenario& scenario, std::int64_t capacity, std::int64_t ir_rows)
      : scenario_(scenario),
        fused_(with(scenario, scenario::Fusion::fused, scenario.dispatch)),
        moved_(with(scenario, scenario::Fusion::eager, scenario::Dispatch::index)),
        pricer_(scenario_),
        fused_pricer_(fused_),
        moved_pricer_(moved_),
        capacity_(capacity),
        ir_rows_(ir_rows),
        members_(static_cast<std::size_t>(scenario.expert_parallel)) {
    std::iota(members_.begin(), members_.end(), 0);
  }

  std::vector<LayerStage> forward() {
    add("gate", fused_pricer_.router(Pass::forward));
    add("capacity", touch(10 * routes()));
    add("weights", touch(14 * routes() + (rectified() ? 16 * tokens() : 0)));
    if (rectified()) add("IR rows", touch(10 * tokens()));
    Kernels dispatch = without_masks(pricer_.dispatch(Pass::forward, capacity_));
    if (einsum()) {
      add("dispatch mask", touch(mask_bytes()));
      add("dispatch product", dispatch);
      add("IR gather", ir_move(Pass::forward, 0));
    } else {
      add("permute", joined(std::move(dispatch), ir_move(Pass::forward, 0)));
    }
    exchange("dispatch all-to-all");
    add("experts", pricer_.experts(Pass::forward, capacity_, 0));
    exchange("combine all-to-all");
    if (rectified()) {
      add("IR counts", pricer_.host_read());
      add("IR experts", ir_ffn(Pass::forward));
    }
    Kernels combine = without_masks(pricer_.combine(Pass::forward, capacity_));
    if (!einsum()) {
      add("combine", joined(std::move(combine), ir_move(Pass::forward, 1)));
      return std::move(stages_);
    }
    add("combine mask", touch(mask_bytes()));
    add("combine product", combine);
    if (rectified()) add("IR blend", touch(2 * token_bytes()));
    return std::move(stages_);
  }

  std::vector<LayerStage> backward() {
    if (einsum()) {
      for (const Kernel& kernel : without_masks(pricer_.combine(Pass::backward, capacity_))) {
        const bool by_weight = kernel.label.find("weight") != std::string::npos;
        add(by_weight ? "combine product by weight" : "combine product by input", {kernel});
      }
      add("mask gradient", touch(12 * routes()));
      add("IR blend backward", ir_move(Pass::backward, 1));
    } else {
      add("combine backward",
          joined(pricer_.combine(Pass::backward, capacity_), ir_move(Pass::backward, 1)));
    }
    exchange("combine all-to-all backward");
    add("experts backward", pricer_.experts(Pass::backward, capacity_, 0));
    exchange("dispatch all-to-all backward");
    if (rectified()) add("IR experts backward", ir_ffn(Pass::backward));
    Kernels dispatch = without_masks(pricer_.dispatch(Pass::backward, capacity_));
    if (einsum()) {
      add("dispatch product by input", dispatch);
      if (rectified()) add("IR gather backward", touch(2 * token_bytes()));
    } else {
      add("permute backward", joined(std::move(dispatch), ir_move(Pass::backward, 0)));
    }
    // Two products with E columns, which their other operand's bytes bound.
    const double logits = 4 * tokens() * scenario_.experts;
    add("router backward", touch(2 * logits + 14 * routes()));
    add("logit gradient in bf16", touch(1.5 * logits));
    add("gate by weight", touch(token_bytes() + logits / 2));
    add("gate by input", touch(2 * token_bytes() + logits / 2));
    return std::move(stages_);
  }

 private:
  static scenario::Scenario with(scenario::Scenario scenario, scenario::Fusion fusion,
                                 scenario::Dispatch dispatch) {
    scenario.fusion = fusion;
    scenario.dispatch = dispatch;
    return scenario;
  }
  static Kernels without_masks(Kernels kernels) {
    std::erase_if(kernels,
                  [](const Kernel& kernel) { return kernel.kernel_class == KernelClass::mask; });
    return kernels;
  }

  bool einsum() const { return scenario_.dispatch == scenario::Dispatch::einsum; }
  bool rectified() const { return scenario_.router.rectification != routing::Rectification::none; }
  double tokens() const { return static_cast<double>(scenario_.tokens_per_gpu); }
  double token_bytes() const { return pricer_.row_bytes(scenario_.tokens_per_gpu); }
  double routes() const { return tokens() * scenario_.router.choices(); }
  double mask_bytes() const {
    return 2.0 * static_cast<double>(scenario_.tokens_per_gpu) *
           static_cast<double>(scenario_.experts * capacity_);
  }
  // One launch that moves so many bytes.
  Kernels touch(double bytes) const {
    return {{"", KernelClass::memory, scenario_.profile->memory(bytes), 1, 0}};
  }
  static Kernels joined(Kernels first, const Kernels& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }
  // Of the IR rows: 0 their gather, 1 their blend; nothing without rows.
  Kernels ir_move(Pass pass, std::size_t which) const {
    const Kernels moves = moved_pricer_.rectify_moves(pass, rectified() ? ir_rows_ : 0);
    return which < moves.size() ? Kernels{moves[which]} : Kernels{};
  }
  Kernels ir_ffn(Pass pass) const {
    Kernels kernels = moved_pricer_.rectify(pass, ir_rows_);
    const std::size_t moves = moved_pricer_.rectify_moves(pass, ir_rows_).size();
    kernels.erase(kernels.begin(), kernels.begin() + static_cast<std::ptrdiff_t>(moves));
    return kernels;
  }
  void add(const std::string& name, const Kernels& kernels) {
    if (!kernels.empty()) stages_.push_back({name, sum(kernels)});
  }
  void exchange(const std::string& name) {
    if (members_.size() == 1) return;
    add(name, {pricer_.exchange(Collective::all_to_all, members_, pricer_.dispatch_bytes(capacity_),
                                name)});
  }

  const scenario::Scenario& scenario_;
  scenario::Scenario fused_, moved_;
  KernelPricer pricer_, fused_pricer_, moved_pricer_;
  std::int64_t capacity_, ir_rows_;
  std::vector<int> members_;
  std::vector<LayerStage> stages_;
};

}  // namespace

std::vector<LayerStage> padded_layer_stages(const scenario::Scenario& scenario, Pass pass,
                                            std::int64_t capacity, std::int64_t ir_rows) {
  PaddedLayer layer(scenario, capacity, ir_rows);
  return pass == Pass::forward ? layer.forward() : layer.backward();
}

double total_us(const std::vector<LayerStage>& stages) {
  double total = 0;
  for (const LayerStage& stage : stages) total += stage.estimate.time_us;
  return total;
}

}  // namespace moesim::step
