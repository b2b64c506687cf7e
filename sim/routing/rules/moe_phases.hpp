#pragma once

#include <span>
#include <vector>

#include "sim/routing/rules/router_config.hpp"

// The phases of a pass through one MoE layer, in order: used by the simulated step, its prices and
// kernels/layer. moe_stages.hpp has the kernels of a phase on one GPU.
namespace moesim::routing {

enum class Pass { forward, backward };
const char* name_of(Pass pass);

// The parts of a step that the time of a layer counts to.
enum class LayerPart { router, dispatch_combine, exchange, expert, rectify };
const char* name_of(LayerPart part);

// S tokens of a GPU go to E experts over P GPUs.
enum class MoePhase {
  shuffle,   // BASE in training: tokens to random GPUs of the group, against correlated batches
  route,     // gate, choice, capacity
  announce,  // sizes that the GPUs exchange before the rows
  dispatch,  // rows in the order of their experts
  dispatch_exchange,  // the all-to-all from tokens to experts; backward: gradients to the tokens
  rectify,            // Intra-GPU Rectification
  shared_expert,      // of all tokens
  sort,               // of the received rows, which lie by source, by expert
  experts,            // of the received rows
  unsort,             // of their outputs, by source
  combine_exchange,   // the all-to-all back; backward: gradients to the experts
  combine,            // each token's rows, weighted and added up
  unshuffle           // BASE in training: tokens back
};

// The quantity that the work of a phase is proportional to.
enum class PhaseRows {
  tokens,     // S
  sent,       // rows that the GPU sends: E C with padded blocks, else the kept rows
  received,   // rows that each of its experts receives: P C with padded blocks
  sorted,     // rows that all of them receive: E C with padded blocks
  rectified,  // IR rows of the GPU
  exchanged   // the bytes of an exchange
};

struct MoePhaseTraits {
  const char* name = "";  // of its operation in a step, forward
  LayerPart part = LayerPart::router;
  PhaseRows rows = PhaseRows::tokens;
};
MoePhaseTraits traits_of(MoePhase phase);

// The conditions that determine the phases of a layer.
struct MoeLayerShape {
  bool exchanges = true;  // P > 1
  bool shuffles = false;
  bool shared_expert = false;
  bool rectified = false;
  IrCompute ir_compute = IrCompute::separate;  // when IR rows are computed
  bool sorts = false;  // several experts on each of several GPUs, rows by source
};
std::vector<MoePhase> moe_phases(Pass pass, const MoeLayerShape& shape);

// Whether an exchange sends rows to their experts, or back to their tokens.
constexpr bool goes_to_experts(MoePhase exchange, Pass pass) {
  return (exchange == MoePhase::dispatch_exchange) == (pass == Pass::forward);
}

}  // namespace moesim::routing
