#include "kernels/layer/plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"

namespace moesim::kernels::layer {
namespace {

using ::moesim::routing::CapacityScope;
using ::moesim::routing::IrCompute;
using ::moesim::routing::Rectification;
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

std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

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
        alone_(problem.router.ranks == 1) {
    plan_.problem = problem;
    plan_.ffn =
        experts::plan_ffn({problem.local_experts(), problem.hidden, problem.ffn},
                          experts::RowLayout::padded(problem.local_experts(), expert_rows()),
                          {false, problem.grouped});
  }

  LayerPlan make() {
    size_buffers();
    list_forward();
    list_backward();
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
  double token_bytes() const { return number(narrow_bytes * tokens_ * hidden_); }
  double row_bytes() const { return number(narrow_bytes * slots_ * hidden_); }
  double mask_bytes() const { return number(narrow_bytes * tokens_ * slots_); }
  double product_flops() const { return 2 * number(tokens_) * number(slots_) * number(hidden_); }
  double gate_flops() const { return 2 * number(tokens_) * number(experts_) * number(hidden_); }
  double routes() const { return number(tokens_) * problem_.router.choices(); }

  std::vector<Stage>* list_ = nullptr;
  void add(StageKind kind, const char* name, Part part, double flops, double bytes) {
    list_->push_back({kind, name, part, flops, bytes, false, false});
  }
  void exchange(StageKind kind, const char* name) {
    if (alone_) return;
    list_->push_back({kind, name, Part::exchange, 0, row_bytes(), true, false});
  }
  // A third of them weights and as much again activations, read or written once each.
  double ffn_bytes(bool backward) const {
    const double weights = 2 * 3 * number(local_) * number(hidden_) * number(ffn_);
    const double cells = 2 * number(slots_) * number(ffn_);
    return backward ? 2 * weights + 4 * row_bytes() + 12 * cells
                    : weights + 2 * row_bytes() + 6 * cells;
  }

  void list_forward() {
    list_ = &plan_.forward;
    const double residual = problem_.residual ? token_bytes() : 0;
    add(StageKind::gate, "gate", Part::router, gate_flops(),
        token_bytes() + number(2 * experts_ * hidden_ + 4 * tokens_ * experts_) + 10 * routes());
    add(StageKind::assign, "capacity", Part::router, 0, 10 * routes());
    add(StageKind::weigh, "weights", Part::router, 0,
        14 * routes() + (rectified_ ? 16 * number(tokens_) : 0));
    if (rectified_) {
      add(StageKind::collect, "IR rows", Part::rectify, 0, 10 * number(tokens_));
    }
    if (einsum_) {
      add(StageKind::dispatch_mask, "dispatch mask", Part::dispatch_combine, 0, mask_bytes());
      add(StageKind::dispatch_product, "dispatch product", Part::dispatch_combine, product_flops(),
          mask_bytes() + token_bytes() + row_bytes());
      if (rectified_) add(StageKind::gather_ir, "IR gather", Part::rectify, 0, 0);
    } else {
      add(StageKind::permute, "permute", Part::dispatch_combine, 0, token_bytes() + row_bytes());
    }
    exchange(StageKind::send, "dispatch all-to-all");
    add(StageKind::experts, "experts", Part::expert, plan_.ffn.forward_flops(), ffn_bytes(false));
    exchange(StageKind::send_back, "combine all-to-all");
    if (rectified_) {
      add(StageKind::ir_counts, "IR counts", Part::rectify, 0, 4 * number(local_ + 1));
      list_->back().waits = true;
      add(StageKind::ir_experts, "IR experts", Part::rectify, 0, 0);
    }
    if (!einsum_) {
      add(StageKind::combine, "combine", Part::dispatch_combine, 0,
          token_bytes() + row_bytes() + residual);
      return;
    }
    add(StageKind::combine_mask, "combine mask", Part::dispatch_combine, 0, mask_bytes());
    add(StageKind::combine_product, "combine product", Part::dispatch_combine, product_flops(),
        mask_bytes() + token_bytes() + row_bytes() + 3 * residual);
    if (rectified_) add(StageKind::blend, "IR blend", Part::rectify, 0, 2 * token_bytes());
  }

  void list_backward() {
    list_ = &plan_.backward;
    const double residual = problem_.residual ? token_bytes() : 0;
    if (einsum_) {
      const double moved = mask_bytes() + token_bytes() + row_bytes();
      add(StageKind::mask_by_weight, "combine product by weight", Part::dispatch_combine,
          product_flops(), moved);
      add(StageKind::mask_by_input, "combine product by input", Part::dispatch_combine,
          product_flops(), moved);
      add(StageKind::read_mask, "mask gradient", Part::dispatch_combine, 0, 12 * routes());
      if (rectified_) add(StageKind::blend_backward, "IR blend backward", Part::rectify, 0, 0);
    } else {
      add(StageKind::combine_backward, "combine backward", Part::dispatch_combine, 0,
          token_bytes() + 2 * row_bytes());
    }
    exchange(StageKind::send_back_gradient, "combine all-to-all backward");
    add(StageKind::experts_backward, "experts backward", Part::expert, plan_.ffn.backward_flops(),
        ffn_bytes(true));
    exchange(StageKind::send_gradient, "dispatch all-to-all backward");
    if (rectified_) {
      add(StageKind::ir_experts_backward, "IR experts backward", Part::rectify, 0, 0);
    }
    if (einsum_) {
      add(StageKind::dispatch_by_input, "dispatch product by input", Part::dispatch_combine,
          product_flops(), mask_bytes() + token_bytes() + row_bytes() + 3 * residual);
      if (rectified_) {
        add(StageKind::blend_gradient, "IR gather backward", Part::rectify, 0, 2 * token_bytes());
      }
    } else {
      add(StageKind::permute_backward, "permute backward", Part::dispatch_combine, 0,
          token_bytes() + row_bytes() + residual);
    }
    const double logit_bytes = 4 * number(tokens_ * experts_);
    add(StageKind::router_backward, "router backward", Part::router, 0,
        2 * logit_bytes + 14 * routes());
    add(StageKind::narrow, "logit gradient in bf16", Part::router, 0, 1.5 * logit_bytes);
    add(StageKind::gate_by_weight, "gate by weight", Part::router, gate_flops(),
        token_bytes() + logit_bytes / 2 + 4 * number(experts_ * hidden_));
    add(StageKind::gate_by_input, "gate by input", Part::router, gate_flops(),
        2 * token_bytes() + logit_bytes / 2 + 2 * number(experts_ * hidden_));
  }

  const LayerProblem& problem_;
  std::size_t tokens_, experts_, local_, slots_, hidden_, ffn_;
  bool rectified_, einsum_, alone_;
  LayerPlan plan_;
};

}  // namespace

const char* name_of(Dispatch dispatch) { return dispatch == Dispatch::index ? "index" : "einsum"; }
const char* name_of(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }
const char* name_of(Part part) {
  constexpr std::array names = {"router", "dispatch_combine", "exchange", "expert", "rectify"};
  return names[static_cast<std::size_t>(part)];
}
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
    if (place[at] == static_cast<Buffer>(at)) sum += rounded(bytes[at]);
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
    next += rounded(plan.bytes[at]);
  }
  for (std::size_t at = 0; at < buffer_count; ++at) {
    carved.at[at] = carved[plan.place[at]];
  }
  return carved;
}

}  // namespace moesim::kernels::layer
