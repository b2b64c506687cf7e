#pragma once

#include <cstdint>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/model/memory/shard_sizes.hpp"
#include "sim/model/model.hpp"
#include "sim/model/precision.hpp"

namespace moesim::model {

enum class ExchangeGroup { tensor, context, expert, expert_tensor };
enum class ExchangeKind { all_gather, reduce_scatter, all_reduce, all_to_all, ring };

// One exchange of a rank, for one layer and micro-batch. `buffer` is the whole group's data that a
// rank gathers, reduces or sends out; what it sends to others is (n - 1) / n of it, twice that in
// an all-reduce.
struct TrainingExchange {
  const char* part;  // "dispatch", "attention input", ...
  ExchangeGroup group;
  ExchangeKind kind;
  int ranks = 1;
  double buffer = 0;  // bytes

  double sent() const;
};
using TrainingExchanges = std::vector<TrainingExchange>;

// How context ranks exchange keys and values: Megatron's cp_comm_type p2p, all_gather and a2a; its
// a2a+p2p is a ring of groups (ExchangeQuery::ulysses_ranks).
enum class ContextMethod { ring, all_gather, all_to_all };
inline constexpr EnumNames<ContextMethod, 3> context_method_names{{
    {ContextMethod::ring, "ring", "pieces go round under attention"},
    {ContextMethod::all_gather, "all-gather", "all pieces first, then attention"},
    {ContextMethod::all_to_all, "all-to-all", "heads for pieces (Ulysses)"},
}};

struct ExchangeQuery {
  const Model* model = nullptr;
  ShardSizes shards;
  std::int64_t sequences = 1;  // b, per micro-batch
  std::int64_t length = 0;     // s
  int choices = 1;             // k
  bool sequence_parallel = true;
  ContextMethod context = ContextMethod::ring;
  bool linear_attention = false;  // of a layer that has it, whose heads context ranks exchange
  int ulysses_ranks =
      1;  // of a ring: its members are groups of so many ranks, which exchange heads
  Precision dispatch = Precision::bf16;
  bool reaches_slices = false;  // the dispatch takes rows to all slices of an expert
  // Rows that slices of experts gather and reduce, over those of a balanced load.
  double expert_load = 1;

  double tokens() const {  // T, of a tensor-parallel group
    return static_cast<double>(sequences * length) / shards.context;
  }
  double tokens_per_rank() const { return tokens() / shards.tensor; }  // T'
};

// The exchanges of one layer, in order; groups of one rank have none. Backward, attention gathers
// its input again (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2), and the gradient of
// the combine travels as the dispatch does. Latent attention gathers its bottlenecks, not its input
// (Megatron-LM computes down-projections on T' tokens). Rows between expert ranks are those of a
// balanced load. Throws UsageError where MoE layers are tensor-parallel without sequence
// parallelism.
TrainingExchanges attention_exchanges(const ExchangeQuery& query, bool backward);
// The part of them that context ranks have: of keys and values, or heads. Linear attention, whose
// state passes from token to token, has whole sequences of some heads on each, by whatever method
// softmax attention goes: what its input projection makes goes out, its normed output back, in one
// all-to-all each (Megatron-Core, megatron/core/ssm/gated_delta_net/common.py, a2a_cp_to_hp).
TrainingExchanges context_exchanges(const ExchangeQuery& query, bool backward);
TrainingExchanges ffn_exchanges(const ExchangeQuery& query, bool backward);  // or shared experts
TrainingExchanges expert_exchanges(const ExchangeQuery& query, bool backward);
TrainingExchanges layer_exchanges(const ExchangeQuery& query, int layer, bool backward);

TrainingExchanges embedding_exchanges(const ExchangeQuery& query, bool backward);
// Output head and vocabulary-parallel loss (megatron/core/tensor_parallel/cross_entropy.py).
TrainingExchanges head_exchanges(const ExchangeQuery& query, bool backward);
// Before a prediction depth's layer: the embedding read once more; a projection of two hidden
// vectors to one, divided by its outputs, which are gathered and of which each rank takes its
// tokens (megatron/core/transformer/multi_token_prediction.py, _concat_embeddings).
TrainingExchanges prediction_exchanges(const ExchangeQuery& query, bool backward);

double sent_bytes(const TrainingExchanges& exchanges);

}  // namespace moesim::model
