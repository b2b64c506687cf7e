#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/network/exchange/exchange_model.hpp"
#include "sim/profile/profile.hpp"
#include "sim/routing/rules/moe_phases.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/step/kernels/kernel_class.hpp"
#include "sim/step/program/message_bytes.hpp"

namespace moesim::step {

// One priced kernel, run `count` times in a row. Kernels with the same label (the same kernel with
// any shape) share one curve error; errors of different labels are independent.
struct Kernel {
  std::string label;
  KernelClass kernel_class = KernelClass::memory;
  profile::Estimate estimate;
  double count = 1;
  double latency_us = 0;  // of an exchange: the fixed part; known where links are slow
};
using Kernels = std::vector<Kernel>;

using routing::Pass;

// Assumed: the time from the end of a kernel to the start of the next one if the host reads a
// result in between.
constexpr double host_read_us = 20;

// Prices the kernels of the blocks of a step: one GPU, one micro-step. The GPU has S tokens, or the
// given number: as many whole sequences as fit and the rest in one shorter sequence. A GPU with 0
// tokens runs only the kernels that make the empty blocks of an exchange. Which kernels a block
// runs, with their FLOPs and bytes, is the operation list of README.md's "What a step is made of";
// all times are from the profile. Backward: each GEMM twice (by input and by weight), memory-bound
// kernels with the bytes of their gradients.
class KernelPricer {
 public:
  explicit KernelPricer(const scenario::Scenario& scenario)
      : KernelPricer(scenario, scenario.tokens_per_gpu) {}
  KernelPricer(const scenario::Scenario& scenario, std::int64_t tokens);

  class List;  // kernel_list.hpp
  const scenario::Scenario& scenario() const { return scenario_; }

  Kernels norm(Pass pass) const;
  Kernels residual(Pass pass) const;
  Kernels attention(Pass pass, bool causal) const;  // one block: projections, rotary, attention
  Kernels dense_ffn(Pass pass) const;
  // Gate GEMM, softmax, top-k' and capacity, as far as the router has them.
  Kernels router(Pass pass) const;
  Kernels host_read() const;  // of a result on the GPU, before work that depends on it
  // `capacity` is C of this layer: rows per (source GPU, expert).
  Kernels dispatch(Pass pass, std::int64_t capacity) const;
  Kernels combine(Pass pass, std::int64_t capacity) const;
  Kernels experts(Pass pass, std::int64_t capacity, std::int64_t appended_rows) const;
  // Whether the experts' call contains dispatch() and combine(): fused, where the rows' tokens are
  // on the GPU of the experts, its own or sent once by a dispatcher. Behind an all-to-all of a row
  // per expert it contains sort_rows() alone (moe_layer_shape). Assumed: the sum over a token's
  // experts takes as long as that of the published call, whose tokens have all k rows.
  bool experts_move_rows() const;
  // BASE's output, `rows` of it.
  Kernels gated_residual(Pass pass, std::int64_t rows) const;
  // The same without padding: `rows` that this GPU sends, or that one of its experts computes; all
  // of them together where their products are batched.
  Kernels dispatch_rows(std::int64_t rows) const;
  Kernels combine_rows(Pass pass, std::int64_t rows) const;
  Kernels expert_rows(Pass pass, std::int64_t rows) const;
  // A copy of the rows that the experts receive, into the order of experts or of sources.
  Kernels sort_rows(std::int64_t rows) const;
  Kernels shared_expert(Pass pass) const;
  Kernels rectify(Pass pass, std::int64_t rows) const;        // compaction, FFN, blend
  Kernels rectify_moves(Pass pass, std::int64_t rows) const;  // compaction and blend alone
  Kernels embedding(Pass pass) const;
  Kernels head(Pass pass) const;  // LM head, loss
  // Adam over the parameters whose optimizer states this GPU keeps.
  Kernels optimizer(double parameters) const;
  Kernels accumulate_gradients(double parameters) const;

  // An exchange of `bytes` (nccl-tests' per-rank buffer) among `members`.
  Kernel exchange(profile::Collective kind, std::span<const int> members, double bytes,
                  const std::string& label) const;
  // As the functions of message_bytes.hpp.
  double dispatch_bytes(std::int64_t capacity) const {
    return step::dispatch_bytes(scenario_, capacity);
  }
  double row_bytes(std::int64_t rows) const { return step::row_bytes(scenario_, rows); }

 private:
  std::int64_t experts_per_rank() const;
  profile::MemoryKernel activation_kernel(double bytes) const;
  bool are_batched() const;  // the products of local experts, in one call
  bool are_fused() const;    // with all between them
  // The whole FFN of the GPU's experts in one call, `rows` of all of them.
  void fused_ffn(List& list, std::int64_t rows) const;
  // `count` calls of `rows` rows, of so many experts each.
  void gated_ffn(List& list, Pass pass, std::int64_t rows, std::int64_t inner, double count,
                 std::int64_t experts = 1) const;
  // FFNs of the GPU's experts, `rows` of each.
  void expert_ffns(List& list, Pass pass, std::int64_t rows) const;
  double token_bytes() const { return row_bytes(tokens_); }
  void gate_product(List& list, const routing::GateWork& work) const;
  Kernels mix(Pass pass, const std::string& name, std::int64_t made, std::int64_t used) const;
  Kernels mix_slots(Pass pass) const;
  Kernels unmix_slots(Pass pass) const;
  double mask_choices() const;
  std::int64_t mixed_length() const;
  Kernels zero_rows(std::int64_t rows) const;
  Kernels dispatch_einsum(Pass pass, std::int64_t capacity) const;
  Kernels combine_einsum(Pass pass, std::int64_t capacity) const;

  const scenario::Scenario& scenario_;
  const profile::Profile& profile_;
  const model::Model& model_;
  std::int64_t tokens_ = 0;
  network::ExchangeModel network_;
};

}  // namespace moesim::step
