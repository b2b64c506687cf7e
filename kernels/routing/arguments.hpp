#pragma once

#include <cstdint>

// What the routing kernels read and write: plain pointers into device memory. Arrays of
// [choice, token] have rows `stride` apart (`stride` >= tokens). Terms and rules as in
// sim/routing/groups/group_router.hpp; choices [0, top_k) are primary, choice top_k, if there, is
// the fill-in nomination.
namespace moesim::kernels::routing {

inline constexpr int most_experts = 512;
inline constexpr int most_choices = 16;  // k', fill-in included
inline constexpr std::uint16_t no_expert = 0xffff;
inline constexpr std::int32_t slot_failed = -1;

// The seeded keys of Priority::random (sim/base/random.hpp, PhiloxWords).
struct RandomKeys {
  std::uint32_t key[2] = {0, 0};
  std::uint32_t counter[2] = {0, 0};
};

// Where softmax and top-k' leave each token's choices. A token with a logit that is NaN or +inf
// gets no_expert and probability 0 everywhere and is counted in `invalid`.
struct ChoiceArrays {
  std::int64_t stride = 0;
  std::uint16_t* expert = nullptr;        // [choice, token]
  float* probability = nullptr;           // [choice, token]
  std::int32_t* slot = nullptr;           // [choice, token], set to slot_failed; may be null
  std::uint16_t* local_expert = nullptr;  // [place, token]: best among the local experts
  float* local_probability = nullptr;     // [place, token]
  std::uint32_t* key = nullptr;           // [token], of Priority::random; may be null
  float* sum_parts = nullptr;             // [2, token]: max a and sum exp(a - max); may be null
  std::int32_t* invalid = nullptr;        // one counter, added to; may be null
};

struct ChooseArguments {
  const float* logits = nullptr;  // [tokens, experts]
  int tokens = 0;
  int experts = 0;
  int choices = 0;
  int local_first = 0;  // experts [local_first, local_last) are local
  int local_last = 0;
  int local_places = 0;  // wanted, best first; 0 without IR
  RandomKeys random;     // used where out.key is not null
  ChoiceArrays out;
};

// The router GEMM, logits = x W^T, and what follows it where it is fused.
struct GateArguments {
  const void* tokens = nullptr;   // x [tokens, hidden]
  const void* weights = nullptr;  // W [experts, hidden], of the same type
  int hidden = 0;                 // a multiple of 8 (bf16)
  float* logits = nullptr;        // [tokens, experts]
  ChooseArguments choose;         // its logits are those above; tokens and experts of both
};

enum class KeyOrder : std::int32_t { probability, random, position };

// Capacity assignment over the tokens that share each expert's slots: those of one rank, or of a
// whole group, rank first.
struct AssignArguments {
  int tokens = 0;
  int experts = 0;
  int top_k = 0;
  int choices = 0;
  std::int32_t capacity = 0;  // slots per expert
  // One queue per expert over all primary choices by g (own-score), or choice after choice.
  bool one_queue = false;
  KeyOrder order = KeyOrder::probability;  // of primary routes, choice after choice: max g, say
  bool fill_by_nominee = true;             // fill-in by g of the nominee; else by `order`
  std::int64_t stride = 0;
  const std::uint16_t* expert = nullptr;  // [choice, token]
  const float* probability = nullptr;     // [choice, token]
  const std::uint32_t* key = nullptr;     // [token], KeyOrder::random
  std::int32_t* slot = nullptr;           // [choice, token]: written where kept
  std::int32_t* row_route = nullptr;      // [expert, capacity]: token * choices + choice, -1 empty
  std::int32_t* kept_rows = nullptr;      // [expert]
  std::int32_t* kept_primary = nullptr;   // [expert], without fill-in
  // All routes sorted by expert, tile by tile (assign_tiles.cuh), by a launch of its own; both
  // null: each expert looks for its routes itself.
  std::uint32_t* tile_begin = nullptr;  // [tile, expert + 1]
  std::uint16_t* tile_token = nullptr;  // [tile, tile_tokens]
  std::int32_t buffered_keys = 0;       // and routes: shared memory has room for so many
};

enum class WeightRule : std::int32_t { kept, before_drop, raw };

// IR and weights, once all slots are known.
struct WeighArguments {
  int tokens = 0;
  int top_k = 0;
  int choices = 0;
  int local_places = 0;  // 0 without IR, 1 with duplicates allowed
  bool exclude_duplicates = false;
  WeightRule rule = WeightRule::kept;
  std::int64_t stride = 0;
  const std::uint16_t* expert = nullptr;
  const float* probability = nullptr;
  const std::int32_t* slot = nullptr;
  const std::uint16_t* local_expert = nullptr;
  const float* local_probability = nullptr;
  float* weight = nullptr;             // [choice, token]
  std::uint16_t* ir_expert = nullptr;  // [token], no_expert: no IR row
  float* ir_weight = nullptr;          // [token]
  float* ir_probability = nullptr;     // [token]
};

// The IR rows of each local expert in token order, one expert's rows behind the other's.
struct CollectArguments {
  int tokens = 0;
  int local_first = 0;
  int local_last = 0;
  const std::uint16_t* ir_expert = nullptr;  // [token]
  std::int32_t* ir_row = nullptr;            // [token], -1: none
  std::int32_t* row_token = nullptr;         // [tokens], the first ir_begin[last] are rows
  std::int32_t* ir_begin = nullptr;          // [local experts + 1]
};

enum class NormaliserRule : std::int32_t { differentiated, straight_through };

// dL/da from u_j = <dL/do, E_j(x)> of the rows that processed a token
// (sim/routing/tokens/gradient.hpp); weights as WeightRule::kept makes them.
struct BackwardArguments {
  const float* logits = nullptr;  // [tokens, experts]
  int tokens = 0;
  int experts = 0;
  int choices = 0;
  bool rectified = false;
  NormaliserRule normaliser = NormaliserRule::straight_through;
  std::int64_t stride = 0;
  const std::uint16_t* expert = nullptr;     // [choice, token]
  const std::int32_t* slot = nullptr;        // [choice, token]
  const float* weight = nullptr;             // [choice, token]
  const float* upstream = nullptr;           // [choice, token], read where the route is kept
  const std::uint16_t* ir_expert = nullptr;  // [token]
  const float* ir_weight = nullptr;          // [token]
  const float* ir_upstream = nullptr;        // [token]
  float* gradient = nullptr;                 // [tokens, experts]
};

}  // namespace moesim::kernels::routing
