#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/engine/program.hpp"
#include "sim/profile/collective.hpp"
#include "sim/routing/rules/moe_phases.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::step {

using routing::MoePhase;
using routing::Pass;

// What an operation of a step does; operation_kernels.cpp has its kernels.
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
  collective,              // of a size that depends on the scenario alone
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
inline constexpr EnumNames<Groups, 4> group_names{
    {{Groups::expert_parallel, "expert_parallel"},
     {Groups::expert_data_parallel, "expert_data_parallel"},
     {Groups::world, "world"},
     {Groups::domain, "domain"}}};

// One operation, the same on all GPUs. Its name, part, layer and dependencies are in
// engine::Operation.
struct StepOperation {
  Work work = Work::phase;
  Pass pass = Pass::forward;
  MoePhase phase = MoePhase::route;
  int moe_layer = -1;            // index among MoE layers, -1: none
  bool announces = false;        // sends the sizes for an exchange; skipped without it
  bool causal = true;            // of attention
  bool cross_attends = false;    // of attention
  double parameters = 0;         // accumulate_gradients, optimizer
  Groups groups = Groups::none;  // of a collective
  profile::Collective collective = profile::Collective::all_to_all;
  double bytes = 0;   // collective: per-rank buffer, as in nccl-tests
  std::string label;  // collective

  auto operator<=>(const StepOperation&) const = default;
};

// The all-to-all that an operation performs: of an MoE layer's rows, or of their probabilities.
enum class Direction { none, to_experts, to_tokens };

// The operations of one step of a scenario, their order and their dependencies, without durations.
class StepProgram {
 public:
  explicit StepProgram(const scenario::Scenario& scenario);

  const engine::Program& program() const { return program_; }
  // The work of program().operations[index].
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

// An MoE layer of a step; all MoE layers are alike.
routing::MoeLayerShape moe_layer_shape(const scenario::Scenario& scenario);

}  // namespace moesim::step
