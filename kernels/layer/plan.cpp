#include "kernels/layer/plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/alignment.hpp"
#include "sim/base/error.hpp"

namespace moesim::kernels::layer {
namespace {

using ::moesim::routing::CapacityScope;
using ::moesim::routing::IrCompute;
using ::moesim::routing::MoeLayerShape;
using ::moesim::routing::MoeLayerSizes;
using ::moesim::routing::MoeStage;
using ::moesim::routing::MoeStageWork;
using ::moesim::routing::Rectification;
using ::moesim::routing::RowMoves;
using ::moesim::routing::Weights;

constexpr std::size_t narrow_bytes = 2;
constexpr std::size_t wide_bytes = 4;

constexpr std::array<const char*, buffer_count> buffer_names = {"x",
                                                                "gate_weight",
                                                                "up_weight",
                                                                "down_weight",
                                                                "out_gradient",
                                                                "router",
                                                                "logits",
                                                                "dispatch_mask",
                                                                "combine_mask",
                                                                "rows",
                                                                "received",
                                                                "hidden",
                                                                "activated",
                                                                "expert_out",
                                                                "returned",
                                                                "ir_rows",
                                                                "ir_hidden",
                                                                "ir_activated",
                                                                "ir_out",
                                                                "mixed",
                                                                "out",
                                                                "mask_gradient",
                                                                "returned_gradient",
                                                                "expert_out_gradient",
                                                                "activated_gradient",
                                                                "hidden_gradient",
                                                                "received_gradient",
                                                                "rows_gradient",
                                                                "ir_out_gradient",
                                                                "ir_activated_gradient",
                                                                "ir_hidden_gradient",
                                                                "ir_rows_gradient",
                                                                "mixed_gradient",
                                                                "upstream",
                                                                "ir_upstream",
                                                                "logit_gradient",
                                                                "narrow_logit_gradient",
                                                                "x_gradient",
                                                                "gate_weight_gradient",
                                                                "up_weight_gradient",
                                                                "down_weight_gradient"};

class Planner {
 public:
  explicit Planner(const LayerProblem& problem)
      : problem_(problem),
        tokens_(static_cast<std::size_t>(problem.router.tokens)),
        experts_(static_cast<std::size_t>(problem.router.experts)),
        local_(static_cast<std::size_t>(problem.local_experts())),
        slots_(static_cast<std::size_t>(problem.slots())),
        hidden_(static_cast<std::size_t>(problem.hidden)),
        ffn_(static_cast<std::size_t>(problem.ffn)),
        rectified_(problem.rectified()),
        einsum_(problem.dispatch == Dispatch::einsum),
        alone_(problem.router.ranks == 1),
        sizes_{problem.router.tokens, problem.router.experts,   problem.router.capacity(),
               problem.hidden,        problem.router.choices(), problem.rectified(),
               problem.residual} {
    plan_.problem = problem;
    plan_.ffn =
        experts::plan_ffn({problem.local_experts(), problem.hidden, problem.ffn},
                          experts::RowLayout::padded(problem.local_experts(), expert_rows()),
                          {false, problem.grouped});
  }

  LayerPlan make() {
    size_buffers();
    plan_.forward = list(Pass::forward);
    plan_.backward = list(Pass::backward);
    return std::move(plan_);
  }

 private:
  std::int64_t expert_rows() const {
    return std::int64_t{problem_.router.ranks} * problem_.router.capacity();
  }

  void size(Buffer buffer, std::size_t elements, std::size_t each = narrow_bytes) {
    plan_.bytes[static_cast<std::size_t>(buffer)] = elements * each;
  }
  void share(Buffer buffer, Buffer with) { plan_.place[static_cast<std::size_t>(buffer)] = with; }

  void size_buffers() {
    for (std::size_t at = 0; at < buffer_count; ++at) plan_.place[at] = static_cast<Buffer>(at);
    using enum Buffer;
    for (const Buffer each : {x, out_gradient, out, x_gradient}) size(each, tokens_ * hidden_);
    size(gate_weight, experts_ * hidden_);
    size(gate_weight_gradient, experts_ * hidden_, wide_bytes);
    for (const Buffer each : {up_weight, up_weight_gradient})
      size(each, local_ * 2 * ffn_ * hidden_);
    for (const Buffer each : {down_weight, down_weight_gradient})
      size(each, local_ * hidden_ * ffn_);
    size(router, routing::buffer_bytes(problem_.router), 1);
    for (const Buffer each : {logits, logit_gradient}) size(each, tokens_ * experts_, wide_bytes);
    size(narrow_logit_gradient, tokens_ * experts_);
    size(upstream, static_cast<std::size_t>(problem_.router.stride() * problem_.router.choices()),
         wide_bytes);
    // P C rows for each of L experts are as many as C for each of E.
    for (const Buffer each : {rows, received, expert_out, returned, returned_gradient,
                              expert_out_gradient, received_gradient, rows_gradient}) {
      size(each, slots_ * hidden_);
    }
    for (const Buffer each : {hidden, hidden_gradient}) size(each, slots_ * 2 * ffn_);
    for (const Buffer each : {activated, activated_gradient}) size(each, slots_ * ffn_);
    if (einsum_) {
      for (const Buffer each : {dispatch_mask, combine_mask, mask_gradient}) {
        size(each, tokens_ * slots_);
      }
    }
    if (rectified_) size_ir_buffers();
    if (!alone_) return;
    share(received, rows);
    share(returned, expert_out);
    share(expert_out_gradient, returned_gradient);
    share(rows_gradient, received_gradient);
  }

  // As many rows as there are tokens: how many will be there, only the device knows.
  void size_ir_buffers() {
    using enum Buffer;
    for (const Buffer each : {ir_rows, ir_out, ir_out_gradient, ir_rows_gradient}) {
      size(each, tokens_ * hidden_);
    }
    for (const Buffer each : {ir_hidden, ir_hidden_gradient}) size(each, tokens_ * 2 * ffn_);
    for (const Buffer each : {ir_activated, ir_activated_gradient}) size(each, tokens_ * ffn_);
    size(ir_upstream, tokens_, wide_bytes);
    if (!einsum_) return;
    size(mixed, tokens_ * hidden_);
    size(mixed_gradient, tokens_ * hidden_);
  }

  static double number(std::size_t count) { return static_cast<double>(count); }

  // What the products of the experts and their activation (kernels/experts/ffn.cpp) read and write,
  // each operand once: weights, rows [slots, hidden] and what lies between the two layers of
  // weights: [slots, 2 ffn] before the activation and [slots, ffn] behind it.
  double ffn_bytes(Pass pass) const {
    const double weights = number(narrow_bytes * 3 * local_ * hidden_ * ffn_);
    const double rows = number(narrow_bytes * slots_ * hidden_);
    const double activated = number(narrow_bytes * slots_ * ffn_);
    const double before = 2 * activated;
    if (pass == Pass::forward) {
      // up: rows, weights -> before; activation: before -> activated; down: activated -> rows.
      return weights + 2 * rows + 2 * before + 2 * activated;
    }
    // down by input: rows, weights -> activated; by weight: rows, activated -> weights;
    // activation: before, activated -> before; up by input: before, weights -> rows;
    // by weight: before, rows -> weights.
    return 2 * weights + 4 * rows + 4 * before + 3 * activated;
  }

  Stage stage_of(const MoeStage& listed, Pass pass) const {
    const MoeStageWork work = work_of(listed.kind, sizes_);
    Stage stage{listed.kind,
                listed.name,
                listed.part,
                work.flops,
                work.bytes + work.weight_bytes,
                listed.part == LayerPart::exchange,
                false};
    if (listed.kind == StageKind::experts || listed.kind == StageKind::experts_backward) {
      stage.flops = pass == Pass::forward ? plan_.ffn.forward_flops() : plan_.ffn.backward_flops();
      stage.bytes = ffn_bytes(pass);
    } else if (listed.kind == StageKind::ir_counts) {
      stage.bytes = 4 * number(local_ + 1);
      stage.waits = true;
    }
    return stage;
  }

  std::vector<Stage> list(Pass pass) const {
    MoeLayerShape shape;
    shape.exchanges = !alone_;
    shape.rectified = rectified_;
    std::vector<Stage> stages;
    for (const MoeStage& listed :
         moe_stages(pass, shape, einsum_ ? RowMoves::einsum : RowMoves::index)) {
      stages.push_back(stage_of(listed, pass));
    }
    return stages;
  }

  const LayerProblem& problem_;
  std::size_t tokens_, experts_, local_, slots_, hidden_, ffn_;
  bool rectified_, einsum_, alone_;
  MoeLayerSizes sizes_;
  LayerPlan plan_;
};

}  // namespace

const char* name_of(Dispatch dispatch) { return dispatch == Dispatch::index ? "index" : "einsum"; }
const char* name_of(Buffer buffer) { return buffer_names[static_cast<std::size_t>(buffer)]; }

void LayerProblem::check() const {
  router.check();
  const auto& config = router.config;
  const auto refuse = [](const std::string& what) { throw UsageError("the layer: " + what); };
  if (router.tokens < 1) refuse("no tokens; give at least one");
  if (router.capacity() < 1) {
    refuse("a capacity of 0 leaves nothing to exchange; raise --capacity-factor");
  }
  if (config.weights != Weights::kept) {
    refuse(fmt::format("--weights {} has no backward; use kept",
                       ::moesim::routing::name_of(config.weights)));
  }
  if (config.rectification == Rectification::node && router.ranks > 1) {
    refuse("+ir@node sends rows to other GPUs, for which there is no exchange; use +ir");
  }
  if (config.rectification != Rectification::none && config.ir_compute != IrCompute::separate) {
    refuse(fmt::format("--ir-compute {}: IR rows are computed after the others; use separate",
                       ::moesim::routing::name_of(config.ir_compute)));
  }
  if (config.capacity_scope == CapacityScope::group && router.ranks > 1) {
    refuse("--capacity-scope group needs the choices of all ranks at one; use source");
  }
  if (dispatch == Dispatch::einsum && slots() % 8 != 0) {
    refuse(fmt::format(
        "masks of {} experts x {} slots are no whole number of 16-byte pieces; choose a capacity "
        "that makes it a multiple of 8, or --dispatch index",
        router.experts, router.capacity()));
  }
  experts::FfnShape{local_experts(), hidden, ffn}.check();
}

std::size_t LayerPlan::memory_bytes() const {
  std::size_t sum = 0;
  for (std::size_t at = 0; at < buffer_count; ++at) {
    if (place[at] == static_cast<Buffer>(at)) sum += aligned(bytes[at]);
  }
  return sum;
}

double LayerPlan::flops(Pass pass) const {
  double sum = 0;
  for (const Stage& stage : stages(pass)) sum += stage.flops;
  return sum;
}

LayerPlan plan_layer(const LayerProblem& problem) {
  problem.check();
  return Planner(problem).make();
}

LayerMemory carve(void* memory, const LayerPlan& plan) {
  LayerMemory carved;
  auto* next = static_cast<unsigned char*>(memory);
  for (std::size_t at = 0; at < buffer_count; ++at) {
    if (plan.bytes[at] == 0 || plan.place[at] != static_cast<Buffer>(at)) continue;
    carved.at[at] = next;
    next += aligned(plan.bytes[at]);
  }
  for (std::size_t at = 0; at < buffer_count; ++at) {
    carved.at[at] = carved[plan.place[at]];
  }
  return carved;
}

}  // namespace moesim::kernels::layer
