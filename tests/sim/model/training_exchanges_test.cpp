#include "sim/model/memory/training_exchanges.hpp"

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::model;

namespace {

constexpr double mib = 1024 * 1024;

ExchangeQuery query_of(const Model& model) {
  ExchangeQuery query;
  query.model = &model;
  query.length = 4096;
  query.choices = model.moe ? model.moe->top_k : 0;
  return query;
}

// Bytes that a rank sends in the exchanges of one group.
double sent(const TrainingExchanges& list, ExchangeGroup group) {
  double sum = 0;
  for (const TrainingExchange& exchange : list) {
    if (exchange.group == group) sum += exchange.sent();
  }
  return sum;
}

const TrainingExchange& exchange_of(const TrainingExchanges& list, const std::string& part) {
  for (const TrainingExchange& exchange : list) {
    if (exchange.part == part) return exchange;
  }
  FAIL("no exchange " << part);
  return list.front();
}

}  // namespace

TEST_CASE("the dispatch of DeepSeek-V3 is 448 MiB, 441 of them remote") {
  // Every copy in bf16: 4,096 x 8 x 7,168 x 2 bytes; 63 of 64 leave the rank.
  const Model model = Model::load("deepseek-v3");
  ExchangeQuery query = query_of(model);
  query.shards.expert = 64;
  const TrainingExchanges forward = expert_exchanges(query, false);
  REQUIRE(forward.size() == 3);
  CHECK(forward[0].buffer == 448 * mib);
  CHECK(forward[0].sent() == 441 * mib);
  CHECK(forward[1].buffer == 4 * 8 * 4096);  // probabilities
  CHECK(forward[2].sent() == 441 * mib);
  CHECK(sent_bytes(expert_exchanges(query, true)) == sent_bytes(forward));
  // The load of a rank does not depend on the group.
  query.shards.expert = 8;
  CHECK(expert_exchanges(query, false)[0].buffer == 448 * mib);
  // In FP8 by blocks a row is 7,392 bytes; the combine stays bf16, either way.
  query.dispatch = Precision::fp8_block;
  CHECK(exchange_of(expert_exchanges(query, false), "dispatch").buffer == 32768.0 * 7392);
  CHECK(exchange_of(expert_exchanges(query, false), "combine").buffer == 448 * mib);
  CHECK(exchange_of(expert_exchanges(query, true), "combine backward").buffer == 32768.0 * 7392);
  CHECK(exchange_of(expert_exchanges(query, true), "dispatch backward").buffer == 448 * mib);
}

TEST_CASE("tensor parallelism gathers and scatters 2 T h") {
  const Model model = Model::load("mixtral-8x22b");
  ExchangeQuery query = query_of(model);
  query.shards.tensor = 2;
  query.shards.context = 2;
  query.sequences = 3;
  const double hidden = 2.0 * (3 * 4096 / 2) * 6144;  // 2 T h
  const TrainingExchanges forward = attention_exchanges(query, false);
  CHECK(sent(forward, ExchangeGroup::tensor) == 2 * hidden / 2);
  // Backward both swapped, and the input again.
  CHECK(sent(attention_exchanges(query, true), ExchangeGroup::tensor) == 3 * hidden / 2);
  CHECK(sent_bytes(ffn_exchanges(query, false)) == 2 * hidden / 2);
  CHECK(sent_bytes(ffn_exchanges(query, true)) == 3 * hidden / 2);
  CHECK(sent_bytes(embedding_exchanges(query, false)) == hidden / 2);
  CHECK(sent_bytes(embedding_exchanges(query, true)) == hidden / 2);
  // Head: 2 T h, and three all-reduces of 4 T bytes, which each send 2 (n - 1) / n of it.
  CHECK(sent_bytes(head_exchanges(query, false)) == hidden / 2 + 3 * 4.0 * (3 * 4096 / 2));
  CHECK(sent_bytes(head_exchanges(query, true)) == hidden / 2);
  // An MoE layer without shared experts adds nothing over tensor ranks.
  CHECK(sent(layer_exchanges(query, 0, false), ExchangeGroup::tensor) ==
        sent(forward, ExchangeGroup::tensor));
  // One rank exchanges nothing.
  query.shards.tensor = 1;
  CHECK(sent(attention_exchanges(query, false), ExchangeGroup::tensor) == 0);
}

TEST_CASE("a prediction depth reads the embedding and projects two hidden vectors to one") {
  const Model model = Model::load("deepseek-v3");
  ExchangeQuery query = query_of(model);
  query.shards.tensor = 4;
  const double hidden = 2.0 * 4096 * 7168;  // 2 T h
  // Reduce-scatter 2 T h of the embedding; all-gather 4 T h of both vectors, 2 T h of the outputs.
  const TrainingExchanges forward = prediction_exchanges(query, false);
  REQUIRE(forward.size() == 3);
  CHECK(forward[0].kind == ExchangeKind::reduce_scatter);
  CHECK(forward[0].buffer == hidden);
  CHECK(forward[1].kind == ExchangeKind::all_gather);
  CHECK(forward[1].buffer == 2 * hidden);
  CHECK(forward[2].kind == ExchangeKind::all_gather);
  CHECK(forward[2].buffer == hidden);
  CHECK(sent_bytes(forward) == 4 * hidden * 3 / 4);
  // The gradient of the output 2 T h, the input 4 T h again, its gradient 4 T h, the embedding's
  // 2 T h.
  const TrainingExchanges backward = prediction_exchanges(query, true);
  CHECK(sent_bytes(backward) == 6 * hidden * 3 / 4);
  CHECK(exchange_of(backward, "gradient of prediction input").kind == ExchangeKind::reduce_scatter);
  CHECK(exchange_of(backward, "gradient of prediction input").buffer == 2 * hidden);
  // Without sequence parallelism ranks have the input whole, and all-reduce its gradient.
  query.sequence_parallel = false;
  CHECK(sent_bytes(prediction_exchanges(query, false)) == (2 + 1) * hidden * 3 / 4);
  CHECK(sent_bytes(prediction_exchanges(query, true)) == 2 * 2 * hidden * 3 / 4);
  query.shards.tensor = 1;
  CHECK(prediction_exchanges(query, false).empty());
  CHECK(prediction_exchanges(query, true).empty());
}

TEST_CASE("without sequence parallelism blocks end in an all-reduce") {
  const Model model = Model::load("llama3-70b");
  ExchangeQuery query = query_of(model);
  query.shards.tensor = 8;
  query.sequence_parallel = false;
  const double hidden = 2.0 * 4096 * 8192;
  CHECK(sent_bytes(layer_exchanges(query, 0, false)) == 2 * 2 * hidden * 7 / 8);
  CHECK(sent_bytes(layer_exchanges(query, 0, true)) == 2 * 2 * hidden * 7 / 8);
  CHECK(sent_bytes(embedding_exchanges(query, false)) == 2 * hidden * 7 / 8);
  CHECK(sent_bytes(embedding_exchanges(query, true)) == 0);
  const Model moe = Model::load("mixtral-8x22b");
  query.model = &moe;
  CHECK_THROWS_AS(layer_exchanges(query, 0, false), moesim::UsageError);
}

TEST_CASE("latent attention gathers its bottlenecks") {
  const Model model = Model::load("deepseek-v3");
  ExchangeQuery query = query_of(model);
  query.shards.tensor = 4;
  const double in = 2.0 * 4096 * (1536 + 512 + 64) * 3 / 4;
  const double out = 2.0 * 4096 * 7168 * 3 / 4;
  CHECK(sent(attention_exchanges(query, false), ExchangeGroup::tensor) == in + out);
  CHECK(sent(attention_exchanges(query, true), ExchangeGroup::tensor) == 2 * in + out);
  // The shared expert of an MoE layer is tensor-parallel as a dense FFN is.
  CHECK(sent(layer_exchanges(query, 3, false), ExchangeGroup::tensor) == in + out + 2 * out);
}

TEST_CASE("context ranks exchange keys and values, or heads") {
  const Model model = Model::load("mixtral-8x22b");  // g d = 8 x 128, a d = 48 x 128
  ExchangeQuery query = query_of(model);
  query.shards.tensor = 2;
  query.shards.context = 4;
  const double keys_values = 4.0 * 4096 * 8 * 128 / 2 * 3 / 4;  // 4 T_s g d / TP
  for (const auto kind : {ContextMethod::ring, ContextMethod::all_gather}) {
    query.context = kind;
    CHECK(sent(attention_exchanges(query, false), ExchangeGroup::context) == keys_values);
    CHECK(sent(attention_exchanges(query, true), ExchangeGroup::context) == 2 * keys_values);
  }
  CHECK(attention_exchanges(query, true).back().kind == ExchangeKind::reduce_scatter);
  query.context = ContextMethod::all_to_all;
  const double heads = 2.0 * 1024 * 128 * (48 + 2 * 8 + 48) / 2;  // 2 T d (a + 2 g + a) / TP
  CHECK(sent(attention_exchanges(query, false), ExchangeGroup::context) == heads * 3 / 4);
  CHECK(sent(attention_exchanges(query, true), ExchangeGroup::context) == heads * 3 / 4);
  // Two by two: heads inside, and a ring of two over half of the heads.
  query.context = ContextMethod::ring;
  query.ulysses_ranks = 2;
  CHECK(sent(attention_exchanges(query, false), ExchangeGroup::context) ==
        heads / 2 + 4.0 * 4096 * 8 * 128 / 2 / 2 / 2);
  query.ulysses_ranks = 3;
  CHECK_THROWS_AS(attention_exchanges(query, false), moesim::UsageError);
  // Latent attention: a (d + e) for keys, a u for values.
  const Model latent = Model::load("deepseek-v3");
  ExchangeQuery other = query_of(latent);
  other.shards.context = 2;
  CHECK(sent(attention_exchanges(other, false), ExchangeGroup::context) ==
        2.0 * 4096 * 128 * (128 + 64 + 128) / 2);
}

TEST_CASE("context ranks exchange the heads of linear attention by whatever method") {
  const Model model = Model::load("qwen3-next-80b-a3b");
  ExchangeQuery query = query_of(model);
  query.shards.tensor = 2;
  query.shards.context = 4;
  query.linear_attention = true;
  // For 1,024 tokens 2 x 2,048 + 4,096 + 4,096 + 64 channels go out, 4,096 come back; 3 of 4 parts
  // of both.
  const double in = 2.0 * 1024 * 12'352 / 2 * 3 / 4;
  const double out = 2.0 * 1024 * 4096 / 2 * 3 / 4;
  for (const auto& method : context_method_names) {
    query.context = method.value;
    for (const bool backward : {false, true}) {
      const TrainingExchanges found = context_exchanges(query, backward);
      REQUIRE(found.size() == 2);
      CHECK(found[0].kind == ExchangeKind::all_to_all);
      CHECK(found[0].sent() == in);
      CHECK(found[1].kind == ExchangeKind::all_to_all);
      CHECK(found[1].sent() == out);
      CHECK(sent(layer_exchanges(query, 0, backward), ExchangeGroup::context) == in + out);
    }
  }
  // Layers with softmax attention pass keys and values of two heads of 256 round.
  query.linear_attention = false;
  query.context = ContextMethod::ring;
  CHECK(sent(context_exchanges(query, false), ExchangeGroup::context) ==
        4.0 * 4096 * 2 * 256 / 2 * 3 / 4);
  query.shards.context = 1;
  query.linear_attention = true;
  CHECK(context_exchanges(query, false).empty());
  const Model plain = Model::load("mixtral-8x22b");
  query.model = &plain;
  CHECK_THROWS_AS(context_exchanges(query, false), moesim::UsageError);
}

TEST_CASE("slices of experts gather the rows that arrive") {
  const Model model = Model::load("mixtral-8x22b");
  ExchangeQuery query = query_of(model);
  query.shards.expert = 4;
  query.shards.expert_tensor = 2;
  query.shards.tensor = 2;
  const double rows = 2.0 * 4096 / 2;  // k T', of each of the two ranks
  for (const bool backward : {false, true}) {
    const TrainingExchanges list = expert_exchanges(query, backward);
    REQUIRE(list.size() == 5);
    CHECK(list[0].buffer == 2 * rows * 6144);
    CHECK(sent(list, ExchangeGroup::expert_tensor) == 2 * (2 * 2 * rows * 6144 / 2));
  }
}
