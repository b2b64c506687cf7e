#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/routing/arguments.hpp"
#include "sim/routing/groups/group_router.hpp"

// Turns the router's configuration, which the simulator shares, into the arguments of its kernels.
// Host code without CUDA: pointers are carried, never followed.
namespace moesim::kernels::routing {

// The tokens of one rank of an expert-parallel group and how they are routed.
struct RouterProblem {
  ::moesim::routing::RouterConfig config;
  int tokens = 0;  // 0 is fine
  int experts = 0;
  int ranks = 1;
  int rank = 0;
  ::moesim::routing::RouterContext context;
  bool list_rows = false;  // RouterBuffers::row_route is wanted
  // How the capacity is assigned; tests set them lower. Where all experts together would look at
  // more routes than this, the routes are sorted first: an estimate of where that pays on an H200.
  std::int64_t most_looks = std::int64_t{1} << 23;
  int most_listed = 1 << 24;  // routes of an expert that are listed in shared memory

  // Throws UsageError when the router cannot be: dense, k' > E, more than most_choices choices or
  // most_experts experts, E % ranks != 0, more tokens than bit masks in shared memory can hold.
  void check() const;
  int choices() const { return config.choices(); }
  std::int64_t stride() const;  // tokens, up to the next multiple of 32
  std::int32_t capacity() const;
  ::moesim::routing::LocalExperts local() const;  // wanted = 0 without IR
  bool rectified() const { return local().wanted > 0; }
  bool sorts_tiles() const { return std::int64_t{experts} * choices() * tokens > most_looks; }
};

// One rank's results and what the backward needs of them; all on the device. Arrays of [choice,
// token] have rows `stride` apart.
struct RouterBuffers {
  std::uint16_t* expert = nullptr;
  float* probability = nullptr;
  std::int32_t* slot = nullptr;
  float* weight = nullptr;
  std::uint16_t* local_expert = nullptr;  // [place, token], with IR, as those below
  float* local_probability = nullptr;
  std::uint16_t* ir_expert = nullptr;  // [token], no_expert: no IR row
  float* ir_weight = nullptr;
  float* ir_probability = nullptr;
  std::int32_t* ir_row = nullptr;        // [token], -1: none
  std::int32_t* ir_row_token = nullptr;  // [tokens]
  std::int32_t* ir_begin = nullptr;      // [local experts + 1]: where each expert's IR rows begin
  std::uint32_t* key = nullptr;          // [token], Priority::random
  // [experts, capacity]: token * k' + choice, -1: empty; with RouterProblem::list_rows
  std::int32_t* row_route = nullptr;
  std::uint32_t* tile_begin = nullptr;  // with RouterProblem::sorts_tiles(), as AssignArguments'
  std::uint16_t* tile_token = nullptr;
  std::int32_t* kept_rows = nullptr;     // [experts]
  std::int32_t* kept_primary = nullptr;  // [experts]
  std::int32_t* invalid = nullptr;       // [1]: tokens with NaN or +inf logits; zero it yourself
};

// Bytes of device memory that carve() hands out for a problem.
std::size_t buffer_bytes(const RouterProblem& problem);
// `memory` is aligned to 256 bytes and holds buffer_bytes(problem).
RouterBuffers carve(void* memory, const RouterProblem& problem);

// `logits` is [tokens, experts].
ChooseArguments choose_arguments(const RouterProblem& problem, const RouterBuffers& buffers,
                                 const float* logits);
// Capacity per source. Under CapacityScope::group the arrays of all ranks have to be gathered
// first: then set tokens, stride, capacity (the sum over ranks) and the pointers yourself, those of
// the tiles to null.
AssignArguments assign_arguments(const RouterProblem& problem, const RouterBuffers& buffers);
WeighArguments weigh_arguments(const RouterProblem& problem, const RouterBuffers& buffers);
CollectArguments collect_arguments(const RouterProblem& problem, const RouterBuffers& buffers);
// `upstream` is [choice, token] with the problem's stride, `ir_upstream` [token] (null without IR),
// `gradient` [tokens, experts]. Throws UsageError for weights other than Weights::kept.
BackwardArguments backward_arguments(const RouterProblem& problem, const RouterBuffers& buffers,
                                     const float* logits, const float* upstream,
                                     const float* ir_upstream, NormaliserRule rule,
                                     float* gradient);

// How many routes of an expert an assignment lists with their keys, and the shared memory that
// takes. Throws UsageError when the masks alone exceed what a block can have.
struct AssignShape {
  int buffered_keys = 0;
  std::size_t shared_bytes = 0;
};
AssignShape assign_shape(int tokens, int choices);

}  // namespace moesim::kernels::routing
