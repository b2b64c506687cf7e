#pragma once

#include <span>
#include <vector>

#include "sim/routing/rules/router_config.hpp"

// One MoE layer as a step of the simulator, its price lists and kernels/layer all go through it:
// the phases of a pass in their order. Which kernels a phase has on one GPU: moe_stages.hpp.
namespace moesim::routing {

enum class Pass { forward, backward };
const char* name_of(Pass pass);

// The parts of a step that a layer's time counts to.
enum class LayerPart { router, dispatch_combine, exchange, expert, rectify };
const char* name_of(LayerPart part);

// S tokens of a GPU go to E experts over P GPUs.
enum class MoePhase {
  shuffle,   // BASE in training: tokens to random GPUs of the group, a batch's order undone
  route,     // gate, choice, capacity
  announce,  // what the GPUs have to agree on before they exchange rows
  dispatch,  // rows in the order of their experts
  dispatch_exchange,  // the all-to-all from tokens to experts; backward their gradients come home
  rectify,            // Intra-GPU Rectification
  shared_expert,      // of all tokens
  experts,            // of the rows that came
  combine_exchange,   // the all-to-all back; backward gradients go to the experts
  combine,            // each token's rows, weighted and added up
  unshuffle           // BASE in training: tokens home
};

// The number that a phase's work grows with.
enum class PhaseRows {
  tokens,     // S
  sent,       // rows that the GPU sends: E C of padded blocks, else those that it keeps
  received,   // rows that each of its experts gets: P C, or those that came
  rectified,  // IR rows of the GPU
  exchanged   // the bytes of an exchange
};

struct MoePhaseTraits {
  const char* name = "";  // of its operation in a step, forward
  LayerPart part = LayerPart::router;
  PhaseRows rows = PhaseRows::tokens;
};
MoePhaseTraits traits_of(MoePhase phase);

// What decides which phases a layer has.
struct MoeLayerShape {
  bool exchanges = true;  // P > 1
  bool shuffles = false;
  bool shared_expert = false;
  bool rectified = false;
  IrCompute ir_compute = IrCompute::separate;  // when
};
std::vector<MoePhase> moe_phases(Pass pass, const MoeLayerShape& shape);

// Whether an exchange takes rows to their experts, or home to their tokens.
constexpr bool goes_to_experts(MoePhase exchange, Pass pass) {
  return (exchange == MoePhase::dispatch_exchange) == (pass == Pass::forward);
}

}  // namespace moesim::routing
