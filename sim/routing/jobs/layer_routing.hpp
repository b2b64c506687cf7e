#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/routing/jobs/token_copies.hpp"
#include "sim/routing/rules/token_loss.hpp"

namespace moesim::routing {

// The routing of one MoE layer over all GPUs of a job. The meaning of the numbers for each kind of
// router:
//   top_k, random, hash    capacity C; kept_rows the routes kept, fill-in included. With
//                          RouterConfig::pads_exchange() each block travels as exchanged_capacity
//                          rows: C, under `group` scope the largest kept count of the group
//   gating_dropout         the same; where the layer skips the exchange (`exchanged` false), rows
//                          go to their GPU's own experts, of ceil(CF S / (E / P)) slots each
//   dropless, base:greedy, bias_balanced
//                          capacity 0; all routes kept, and kept_rows travel
//   group_limited          as dropless; with `drops` as top_k
//   expert_choice, base    blocks of exactly C rows, all kept (expert_choice: of S where C is more)
//   soft                   capacity C slots, all full: kept_rows = C. loss is 0
//   scomoe                 kept_rows are the blocks with their padding: the slots of the pools that
//                          may go there. capacity, the largest of them, is that of an own expert
// exchanged_capacity is the largest block that is sent, for every kind; where expert-parallel
// groups pad to blocks of different sizes, group_blocks has that of each. C depends on the tokens
// of the source: ragged sources have different C, and in a padded exchange all send blocks of the
// largest size, because ranks would otherwise wait for rows that are never sent; loss.padded is
// relative to the slots from the C of each source. The routes of `loss` are those that the router
// chose (for expert_choice those of the token's k best experts), its masses are relative to the k
// best of all experts; random and hash have no g: each expert counts 1.
struct LayerRouting {
  TokenLoss loss;                       // over all GPUs
  std::int64_t capacity = 0;            // C, slots per expert and source GPU (the fullest)
  std::int64_t exchanged_capacity = 0;  // rows of the largest (source, expert) block
  // [group]: rows of the blocks of each; empty: exchanged_capacity in all. See group_blocks.hpp.
  std::vector<std::int64_t> group_blocks;
  std::vector<std::int32_t> kept_rows;  // [gpu, expert]
  std::vector<std::int32_t> ir_rows;    // [gpu]: rows that gpu computes for IR
  std::vector<std::int64_t> demand;     // [expert]: primary routes of all GPUs that asked for it,
                                        // kept or not
  bool exchanged = true;                // false: no all-to-all in this layer, on any GPU
  TokenCopies copies;  // with RoutingJob::count_copies; empty for kinds whose blocks are no choices
                       // of tokens (expert_choice, soft, scomoe) and for recorded counts

  std::int64_t block_of(int group) const {
    return group_blocks.empty() ? exchanged_capacity
                                : group_blocks[static_cast<std::size_t>(group)];
  }
};

// One replica: every layer and every GPU is routed separately.
struct ReplicaRouting {
  TokenLoss loss;  // mean over layers
  std::vector<LayerRouting> layers;
};

}  // namespace moesim::routing
