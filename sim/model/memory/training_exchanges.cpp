#include "sim/model/memory/training_exchanges.hpp"

#include <fmt/format.h>

#include "sim/base/error.hpp"
#include "sim/base/units.hpp"

namespace moesim::model {
namespace {

// The exchanges of a group, or none where it has one rank.
class List {
 public:
  List(ExchangeGroup group, int ranks) : group_(group), ranks_(ranks) {}
  void add(const char* part, ExchangeKind kind, double buffer) {
    if (ranks_ > 1) list_.push_back({part, group_, kind, ranks_, buffer});
  }
  TrainingExchanges take() { return std::move(list_); }

 private:
  ExchangeGroup group_;
  int ranks_;
  TrainingExchanges list_;
};

void append(TrainingExchanges& list, const TrainingExchanges& more) {
  list.insert(list.end(), more.begin(), more.end());
}

// A block that gathers `in` bytes and returns `out`: under tensor parallelism with sequence
// parallelism; without, an all-reduce at its end, backward at its start.
TrainingExchanges tensor_block(const ExchangeQuery& query, const char* part, double in, double out,
                               bool backward) {
  List list(ExchangeGroup::tensor, query.shards.tensor);
  if (!query.sequence_parallel) {
    list.add(part, ExchangeKind::all_reduce, backward ? in : out);
    return list.take();
  }
  list.add(part, ExchangeKind::all_gather, backward ? out : in);
  if (backward) list.add(part, ExchangeKind::all_gather, in);  // the input, for weight gradients
  list.add(part, ExchangeKind::reduce_scatter, backward ? in : out);
  return list.take();
}

double hidden_bytes(const ExchangeQuery& query) {
  return bf16_bytes * query.tokens() * static_cast<double>(query.model->hidden);
}

// Bytes that attention gathers over tensor ranks.
double attention_input_bytes(const ExchangeQuery& query) {
  const Model& model = *query.model;
  if (!model.latent || !query.sequence_parallel) return hidden_bytes(query);
  const LatentAttention& latent = *model.latent;
  const std::int64_t queries = latent.query_rank > 0 ? latent.query_rank : model.hidden;
  return bf16_bytes * query.tokens() *
         static_cast<double>(queries + latent.kv_rank + latent.rope_dim);
}

// Elements per token of queries; of keys and values.
double query_width(const Model& model) {
  return static_cast<double>(model.heads * model.query_key_dim());
}
double key_value_width(const Model& model) {
  const std::int64_t heads = model.latent ? model.heads : model.kv_heads;
  return static_cast<double>(heads * (model.query_key_dim() + model.value_dim()));
}

// Keys and values of `tokens` tokens; backward once more, and their gradients.
void add_key_value_passes(List& list, ExchangeKind kind, double bytes, bool backward) {
  list.add("keys and values", kind, bytes);
  if (!backward) return;
  const bool gathers = kind == ExchangeKind::all_gather;
  list.add("gradients of keys and values", gathers ? ExchangeKind::reduce_scatter : kind, bytes);
}

// Heads for tokens: queries, keys and values in, outputs back.
void add_head_exchanges(List& list, const ExchangeQuery& query) {
  const Model& model = *query.model;
  const double tokens = query.tokens() / query.shards.tensor;
  const double out = static_cast<double>(model.heads * model.value_dim());
  list.add("queries, keys and values", ExchangeKind::all_to_all,
           bf16_bytes * tokens * (query_width(model) + key_value_width(model)));
  list.add("attention output", ExchangeKind::all_to_all, bf16_bytes * tokens * out);
}

TrainingExchanges linear_attention_exchanges(const ExchangeQuery& query) {
  const LinearAttention& linear = *query.model->linear;
  const double token_bytes = bf16_bytes * query.tokens() / query.shards.tensor;
  List list(ExchangeGroup::context, query.shards.context);
  list.add("linear attention input", ExchangeKind::all_to_all,
           token_bytes * static_cast<double>(linear.projected()));
  list.add("linear attention output", ExchangeKind::all_to_all,
           token_bytes * static_cast<double>(linear.value_width()));
  return list.take();
}

void check(const ExchangeQuery& query) {
  const ShardSizes& shards = query.shards;
  const bool positive = shards.tensor > 0 && shards.context > 0 && shards.expert > 0 &&
                        shards.expert_tensor > 0 && query.sequences > 0 && query.length > 0;
  if (query.model == nullptr || !positive) {
    throw UsageError("exchanges of a layer: no model, or a size below 1");
  }
  if (query.linear_attention && !query.model->linear) {
    throw UsageError(query.model->name + " has no linear attention");
  }
  if (query.ulysses_ranks < 1 || shards.context % query.ulysses_ranks != 0) {
    throw UsageError(
        fmt::format("{} context ranks in groups of {}: the second must divide the first",
                    shards.context, query.ulysses_ranks));
  }
}

}  // namespace

double TrainingExchange::sent() const {
  const double once = buffer * (ranks - 1) / ranks;
  return kind == ExchangeKind::all_reduce ? 2 * once : once;
}

TrainingExchanges attention_exchanges(const ExchangeQuery& query, bool backward) {
  check(query);
  TrainingExchanges list =
      tensor_block(query, "attention", attention_input_bytes(query), hidden_bytes(query), backward);
  append(list, context_exchanges(query, backward));
  return list;
}

TrainingExchanges context_exchanges(const ExchangeQuery& query, bool backward) {
  check(query);
  if (query.linear_attention) return linear_attention_exchanges(query);
  const int ranks = query.shards.context;
  List list(ExchangeGroup::context, ranks);
  const double all =
      bf16_bytes * query.tokens() * ranks * key_value_width(*query.model) / query.shards.tensor;
  switch (query.context) {
    case ContextMethod::ring: {
      if (query.ulysses_ranks == 1) {
        add_key_value_passes(list, ExchangeKind::ring, all, backward);
        break;
      }
      List inside(ExchangeGroup::context, query.ulysses_ranks);
      add_head_exchanges(inside, query);
      List across(ExchangeGroup::context, ranks / query.ulysses_ranks);
      add_key_value_passes(across, ExchangeKind::ring, all / query.ulysses_ranks, backward);
      TrainingExchanges both = inside.take();
      append(both, across.take());
      return both;
    }
    case ContextMethod::all_gather:
      add_key_value_passes(list, ExchangeKind::all_gather, all, backward);
      break;
    case ContextMethod::all_to_all:
      add_head_exchanges(list, query);
      break;
  }
  return list.take();
}

TrainingExchanges ffn_exchanges(const ExchangeQuery& query, bool backward) {
  check(query);
  const double bytes = hidden_bytes(query);
  return tensor_block(query, "ffn", bytes, bytes, backward);
}

TrainingExchanges expert_exchanges(const ExchangeQuery& query, bool backward) {
  check(query);
  const ShardSizes& shards = query.shards;
  if (shards.tensor > 1 && !query.sequence_parallel) {
    throw UsageError("experts below tensor parallelism need sequence parallelism");
  }
  const double rows = query.choices * query.tokens_per_rank();
  const std::int64_t hidden = query.model->hidden;
  const double wide = bf16_bytes * rows * static_cast<double>(hidden);
  const double narrow = rows * static_cast<double>(quantized_row_bytes(query.dispatch, hidden));
  List out(ExchangeGroup::expert, shards.expert);
  out.add(backward ? "combine backward" : "dispatch", ExchangeKind::all_to_all, narrow);
  if (!backward) out.add("dispatch probabilities", ExchangeKind::all_to_all, fp32_bytes * rows);
  List slices(ExchangeGroup::expert_tensor, shards.expert_tensor);
  if (!query.reaches_slices) {
    const double of_slices = query.expert_load * wide * shards.expert_tensor;
    slices.add("expert rows", ExchangeKind::all_gather, of_slices);
    slices.add("expert rows", ExchangeKind::reduce_scatter, of_slices);
  }
  List back(ExchangeGroup::expert, shards.expert);
  back.add(backward ? "dispatch backward" : "combine", ExchangeKind::all_to_all, wide);
  if (backward) {
    back.add("dispatch probabilities backward", ExchangeKind::all_to_all, fp32_bytes * rows);
  }
  TrainingExchanges list = out.take();
  append(list, slices.take());
  append(list, back.take());
  return list;
}

TrainingExchanges layer_exchanges(const ExchangeQuery& query, int layer, bool backward) {
  TrainingExchanges list = attention_exchanges(query, backward);
  const Model& model = *query.model;
  const bool moe = model.is_moe_layer(layer);
  if (moe) append(list, expert_exchanges(query, backward));
  if (!moe || model.moe->shared_ffn > 0) append(list, ffn_exchanges(query, backward));
  return list;
}

TrainingExchanges embedding_exchanges(const ExchangeQuery& query, bool backward) {
  check(query);
  List list(ExchangeGroup::tensor, query.shards.tensor);
  const bool gathered = backward && query.sequence_parallel;
  if (query.sequence_parallel || !backward) {
    list.add("embedding",
             gathered                  ? ExchangeKind::all_gather
             : query.sequence_parallel ? ExchangeKind::reduce_scatter
                                       : ExchangeKind::all_reduce,
             hidden_bytes(query));
  }
  return list.take();
}

TrainingExchanges head_exchanges(const ExchangeQuery& query, bool backward) {
  check(query);
  List list(ExchangeGroup::tensor, query.shards.tensor);
  if (query.sequence_parallel) {
    list.add("head", backward ? ExchangeKind::reduce_scatter : ExchangeKind::all_gather,
             hidden_bytes(query));
  } else if (backward) {
    list.add("head", ExchangeKind::all_reduce, hidden_bytes(query));
  }
  if (backward) return list.take();
  for (const char* part : {"largest logit", "predicted logit", "sum of exponentials"}) {
    list.add(part, ExchangeKind::all_reduce, fp32_bytes * query.tokens());
  }
  return list.take();
}

TrainingExchanges prediction_exchanges(const ExchangeQuery& query, bool backward) {
  check(query);
  List list(ExchangeGroup::tensor, query.shards.tensor);
  const double out = hidden_bytes(query);
  const double in = 2 * out;
  TrainingExchanges all = embedding_exchanges(query, backward);
  if (!backward) {
    if (query.sequence_parallel) list.add("prediction input", ExchangeKind::all_gather, in);
    list.add("prediction output", ExchangeKind::all_gather, out);
  } else if (query.sequence_parallel) {
    list.add("gradient of prediction output", ExchangeKind::all_gather, out);
    list.add("prediction input", ExchangeKind::all_gather, in);  // for weight gradients
    list.add("gradient of prediction input", ExchangeKind::reduce_scatter, in);
  } else {
    list.add("gradient of prediction input", ExchangeKind::all_reduce, in);
  }
  append(all, list.take());
  return all;
}

double sent_bytes(const TrainingExchanges& exchanges) {
  double sum = 0;
  for (const TrainingExchange& exchange : exchanges) sum += exchange.sent();
  return sum;
}

}  // namespace moesim::model
