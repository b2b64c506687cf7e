#include "sim/step/kernels/layer_stages.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "sim/routing/rules/gate_work.hpp"
#include "sim/routing/rules/moe_stages.hpp"

namespace moesim::step {
namespace {

using profile::Collective;
using profile::Estimate;
using routing::MoeLayerShape;
using routing::MoeLayerSizes;
using routing::MoeStage;
using routing::MoeStageKind;
using routing::RowMoves;

// Kernels run one after another. Their curve errors are independent, but the quantiles are added,
// which gives the wider interval.
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

// Prices the stages of kernels/layer. The copies hold what differs between stages: the kind of
// gate, and the software that blends IR rows.
class PaddedLayer {
 public:
  PaddedLayer(const scenario::Scenario& scenario, const PaddedLayerRows& rows)
      : scenario_(batched(scenario)),
        fused_(with(scenario, scenario::Fusion::fused, scenario.dispatch)),
        moved_(with(scenario, scenario::Fusion::eager, scenario::Dispatch::index)),
        pricer_(scenario_),
        fused_pricer_(fused_),
        moved_pricer_(moved_),
        capacity_(rows.capacity),
        ir_rows_(rows.ir_rows),
        padding_share_(rows.padding_share),
        members_(static_cast<std::size_t>(scenario.expert_parallel)) {
    std::iota(members_.begin(), members_.end(), 0);
  }

  std::vector<LayerStage> stages(Pass pass) const {
    MoeLayerShape shape;
    shape.exchanges = members_.size() > 1;
    shape.rectified = rectified();
    std::vector<LayerStage> stages;
    for (const MoeStage& stage :
         moe_stages(pass, shape, einsum() ? RowMoves::einsum : RowMoves::index)) {
      const Kernels kernels = kernels_of(stage, pass);
      if (!kernels.empty()) stages.push_back({stage.name, sum(kernels)});
    }
    return stages;
  }

 private:
  // kernels/experts multiplies equal rows of all experts in one call. IR rows stay apart, as it
  // does for many of them.
  static scenario::Scenario batched(scenario::Scenario scenario) {
    scenario.expert_products = scenario::ExpertProducts::batched;
    return scenario;
  }
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
  // Combine reads no empty slots.
  std::int64_t kept_rows() const {
    return std::llround((1 - padding_share_) * static_cast<double>(scenario_.experts * capacity_));
  }
  MoeLayerSizes sizes() const {
    return {scenario_.tokens_per_gpu, scenario_.experts,          capacity_,
            scenario_.model->hidden,  scenario_.router.choices(), rectified()};
  }
  // One launch that moves the stage's bytes. The gate's weights are small in comparison and not
  // counted.
  Kernels touch(MoeStageKind stage) const {
    const double bytes = work_of(stage, sizes()).bytes;
    return {{"", KernelClass::memory, scenario_.profile->memory(bytes), 1, 0}};
  }
  static Kernels joined(Kernels first, const Kernels& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }
  // The kernels of the fused gate with these labels.
  Kernels of_gate(Pass pass, const std::vector<std::string>& labels) const {
    Kernels kernels = fused_pricer_.router(pass);
    std::erase_if(kernels, [&](const Kernel& kernel) {
      return std::find(labels.begin(), labels.end(), kernel.label) == labels.end();
    });
    return kernels;
  }
  // For IR rows: 0 is the gather, 1 the blend; no kernel without rows.
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
  // IR rows add to the weights' gradients that the padded rows have written, so these are read.
  Kernels read_gradients() const {
    if (ir_rows_ == 0) return {};
    const model::Model& model = *scenario_.model;
    const std::int64_t local = scenario_.experts / scenario_.expert_parallel;
    const auto elements = static_cast<double>(local * ((model.gated ? 2 : 1) + 1) * model.hidden *
                                              model.moe->expert_ffn);
    return {{"", KernelClass::memory, scenario_.profile->memory(2 * elements), 1, 0}};
  }
  // Products of so many FLOPs at the rate that the device sustains; a share `zeros` of their left
  // factor's rows is zeros, which take less power. A curve's time beyond that rate is not the
  // power's and stays.
  Kernels sustained(Kernels kernels, double flops, double zeros) const {
    const profile::Device& device = scenario_.profile->device();
    if (device.sustained_bf16_flops <= 0) return kernels;
    const auto is_product = [](const Kernel& kernel) {
      return kernel.kernel_class == KernelClass::gemm || kernel.kernel_class == KernelClass::einsum;
    };
    const double held_us = 1e6 * flops / device.sustained_bf16_flops;
    double products_us = 0;
    for (const Kernel& kernel : kernels) {
      if (is_product(kernel)) products_us += kernel.count * kernel.estimate.time_us;
    }
    if (products_us <= 0) return kernels;
    const double time_us = held_us * (1 - zeros * (1 - device.sustained_padding_share)) +
                           std::max(0.0, products_us - held_us);
    for (Kernel& kernel : kernels) {
      if (!is_product(kernel)) continue;
      kernel.estimate.time_us *= time_us / products_us;
      kernel.estimate.time_us_p05 *= time_us / products_us;
      kernel.estimate.time_us_p95 *= time_us / products_us;
    }
    return kernels;
  }
  double ffn_flops(Pass pass, std::int64_t rows) const {
    const model::Model& model = *scenario_.model;
    const auto matrices = static_cast<double>((model.gated ? 2 : 1) + 1);
    return (pass == Pass::forward ? 2 : 4) * matrices * static_cast<double>(rows) *
           static_cast<double>(model.hidden * model.moe->expert_ffn);
  }
  // Einsum dispatch and combine multiply by a mask of tokens x slots, nearly all of it zeros. The
  // power is an average over milliseconds, so that what these products save the experts use.
  Kernels masked(Kernels kernels, double zeros) const {
    const std::int64_t slots = scenario_.experts * capacity_;
    return sustained(std::move(kernels),
                     2.0 * static_cast<double>(scenario_.tokens_per_gpu * slots) *
                         static_cast<double>(scenario_.model->hidden),
                     zeros);
  }
  Kernels exchange(const char* name) const {
    return {pricer_.exchange(Collective::all_to_all, members_, pricer_.dispatch_bytes(capacity_),
                             name)};
  }
  // For the two products of the einsum combination.
  Kernels combine_product(Pass pass, bool by_weight) const {
    Kernels kernels = without_masks(pricer_.combine(pass, capacity_));
    std::erase_if(kernels, [&](const Kernel& kernel) {
      return (kernel.label.find("weight") != std::string::npos) != by_weight;
    });
    return kernels;
  }

  Kernels kernels_of(const MoeStage& stage, Pass pass) const {
    switch (stage.kind) {
      case MoeStageKind::gate:
        return of_gate(pass, {routing::fused::product, routing::fused::choices});
      case MoeStageKind::assign:
        return of_gate(pass, {routing::fused::positions});
      case MoeStageKind::weigh:
        return of_gate(pass, {routing::fused::weights});
      case MoeStageKind::collect:
        return of_gate(pass, {routing::fused::rectification});
      case MoeStageKind::router_backward:
        return of_gate(pass, {routing::fused::choices_backward});
      case MoeStageKind::gate_by_weight:
        return of_gate(pass, {routing::fused::product + std::string(" by weight")});
      case MoeStageKind::permute:
        return joined(pricer_.dispatch(pass, capacity_), ir_move(pass, 0));
      case MoeStageKind::permute_backward:  // each token's rows are added up, as in combine
        return joined(pricer_.combine_rows(Pass::forward, kept_rows()), ir_move(pass, 0));
      case MoeStageKind::combine:
        return joined(pricer_.combine_rows(Pass::forward, kept_rows()), ir_move(pass, 1));
      case MoeStageKind::combine_backward:
        return joined(pricer_.combine(pass, capacity_), ir_move(pass, 1));
      case MoeStageKind::dispatch_product:
      case MoeStageKind::dispatch_by_input:
        return masked(without_masks(pricer_.dispatch(pass, capacity_)), 1);
      case MoeStageKind::combine_product:
      case MoeStageKind::mask_by_input:
        return masked(combine_product(pass, false), 1);
      case MoeStageKind::mask_by_weight:
        return masked(combine_product(pass, true), 0);
      case MoeStageKind::gather_ir:
        return ir_move(pass, 0);
      case MoeStageKind::blend_backward:
        return ir_move(pass, 1);
      case MoeStageKind::send:
      case MoeStageKind::send_back:
      case MoeStageKind::send_gradient:
      case MoeStageKind::send_back_gradient:
        return exchange(stage.name);
      case MoeStageKind::experts:
      case MoeStageKind::experts_backward:
        return sustained(pricer_.experts(pass, capacity_, 0),
                         ffn_flops(pass, scenario_.experts * capacity_), padding_share_);
      case MoeStageKind::ir_counts:
        return pricer_.host_read();
      case MoeStageKind::ir_experts:
        return sustained(ir_ffn(pass), ffn_flops(pass, ir_rows_), 0);
      case MoeStageKind::ir_experts_backward:
        return joined(sustained(ir_ffn(pass), ffn_flops(pass, ir_rows_), 0), read_gradients());
      case MoeStageKind::dispatch_mask:
      case MoeStageKind::combine_mask:
      case MoeStageKind::blend:
      case MoeStageKind::read_mask:
      case MoeStageKind::blend_gradient:
      case MoeStageKind::narrow:
      case MoeStageKind::gate_by_input:  // adds to the gradient of the experts' input
        break;
    }
    return touch(stage.kind);
  }

  const scenario::Scenario scenario_;
  scenario::Scenario fused_, moved_;
  KernelPricer pricer_, fused_pricer_, moved_pricer_;
  std::int64_t capacity_, ir_rows_;
  double padding_share_;
  std::vector<int> members_;
};

}  // namespace

std::vector<LayerStage> padded_layer_stages(const scenario::Scenario& scenario, Pass pass,
                                            const PaddedLayerRows& rows) {
  return PaddedLayer(scenario, rows).stages(pass);
}

double total_us(const std::vector<LayerStage>& stages) {
  double total = 0;
  for (const LayerStage& stage : stages) total += stage.estimate.time_us;
  return total;
}

}  // namespace moesim::step
