#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/engine/program.hpp"
#include "sim/profile/collective.hpp"
#include "sim/routing/rules/moe_phases.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::step {

using routing::MoePhase;
using routing::Pass;

// What an operation of a step does; operation_kernels.cpp knows its kernels.
enum class Work {
  // Compute.
  embedding,
  attention,  // the attention blocks of a layer, each with its norm and residual
  dense_ffn,  // with norm and residual
  head,       // with the norm before it
  phase,      // of an MoE layer
  shuffle_rows,
  host_read,  // of a result on the GPU
  accumulate_gradients,
  optimizer,
  // Communication.
  collective,              // of a size that the scenario alone decides
  exchange_rows,           // an all-to-all of an MoE layer: dispatch_exchange or combine_exchange
  exchange_probabilities,  // of the rows' probabilities alone
  exchange_rectified       // rows of ir@node inside a domain
};

// The partitions of a step's GPUs into groups: indices into Program::partitions.
enum class Groups : std::int8_t {
  none = -1,
  expert_parallel,
  expert_data_parallel,  // GPUs that hold the same experts
  world,
  domain  // of an expert-parallel group in an NVLink domain
};

// One operation, alike on all GPUs. Its name, part, layer and dependencies are the engine's.
struct StepOperation {
  Work work = Work::phase;
  Pass pass = Pass::forward;
  MoePhase phase = MoePhase::route;
  int moe_layer = -1;            // ordinal among MoE layers, -1: of none
  bool announces = false;        // what an exchange needs first; nothing where there is none
  bool causal = true;            // attention
  bool cross_attends = false;    // attention
  double parameters = 0;         // accumulate_gradients, optimizer
  Groups groups = Groups::none;  // communication
  profile::Collective collective = profile::Collective::all_to_all;
  double bytes = 0;   // collective: per-rank buffer, as nccl-tests has it
  std::string label;  // collective

  auto operator<=>(const StepOperation&) const = default;
};

// The all-to-all of an MoE layer's rows, or of their probabilities, that an operation is.
enum class Direction { none, to_experts, to_tokens };

// Which operations one step of a scenario has, in which order, and what each waits for. How long
// they take is not its business.
class StepProgram {
 public:
  explicit StepProgram(const scenario::Scenario& scenario);

  const engine::Program& program() const { return program_; }
  // What program().operations[index] does.
  const std::vector<StepOperation>& operations() const { return operations_; }
  const StepOperation& operation(int index) const {
    return operations_[static_cast<std::size_t>(index)];
  }
  Direction direction(int index) const;

 private:
  class Builder;

  engine::Program program_;
  std::vector<StepOperation> operations_;
};

// An MoE layer of a step; the same in all its layers.
routing::MoeLayerShape moe_layer_shape(const scenario::Scenario& scenario);

}  // namespace moesim::step
