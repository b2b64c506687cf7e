#include "sim/model/memory/memory.hpp"

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::model;
using moesim::Bytes;

namespace {

MemoryQuery paper_query(const Model& model) {
  MemoryQuery query;
  query.model = &model;
  query.experts = 8;
  query.gpus = 32;
  query.expert_parallel = 8;
  query.tokens = 16384;
  query.capacity = 2048;  // CF 1
  query.zero = 1;
  query.expert_zero = 2;
  query.checkpointing = true;
  query.einsum = true;
  return query;
}

double gb(Bytes bytes) { return static_cast<double>(bytes.count) * 1e-9; }

}  // namespace

TEST_CASE("model states are those of the ZeRO paper") {
  // Figure 1 of arXiv:1910.02054: 7.5 B parameters, 64 GPUs, Adam: 120, 31.4, 16.6 and 1.9 GB.
  const double published[] = {120, 31.4, 16.6, 1.9};
  for (int zero = 0; zero <= 3; ++zero) {
    CAPTURE(zero);
    const StateMemory memory = state_memory(7'500'000'000, 64, zero);
    const double total = gb(memory.parameters + memory.gradients + memory.optimizer);
    CHECK(total == Approx(published[zero]).margin(0.05));
  }
}

// Per token, with the inputs of the FFN and of the norm before it.
std::int64_t dense_layer_bytes(const Model& model) {
  return attention_activation_bytes(model) + 2 * 2 * model.hidden +
         ffn_activation_bytes(model, model.ffn);
}

TEST_CASE("a GELU layer keeps what Korthikanti et al. count") {
  // 34 h per token with dropout masks (2 h), and h = heads x head_dim. Flash attention keeps its
  // log-sum-exp, 4 bytes per head, beyond their list.
  Model model = Model::load("llama2-7b");
  model.gated = false;
  model.ffn = 4 * model.hidden;
  CHECK(dense_layer_bytes(model) == (34 - 2) * model.hidden + 4 * model.heads);
}

TEST_CASE("the paper's training step fits its 80 GB") {
  const Model model = Model::load("llama2-7b-moe8");
  const MemoryFootprint memory = memory_footprint(paper_query(model));
  // 6.739 B parameters on each GPU, 2 bytes each.
  CHECK(gb(memory.parameters) == Approx(2 * 6.739).margin(0.001));
  // Dense gradients (4.574 B) in full, those of one expert per layer (2.164 B) over 4 replicas.
  CHECK(gb(memory.gradients) == Approx(2 * 4.574 + 2 * 2.164 / 4).margin(0.002));
  CHECK(gb(memory.optimizer) == Approx(12 * 4.574 / 32 + 12 * 2.164 / 4).margin(0.002));
  // Two exchanges of 8 x 2,048 rows of 4,096 bf16; two masks of 16,384 x 16,384 bf16, once.
  CHECK(memory.exchange_buffers == Bytes(2 * 16384LL * 4096 * 2));
  CHECK(memory.einsum_masks == Bytes(2 * 16384LL * 16384 * 2));
  CHECK(memory.total().gib() < 80);
  // Without checkpointing the same step does not fit: 16 layers of masks alone are 16 GiB.
  MemoryQuery plain = paper_query(model);
  plain.checkpointing = false;
  CHECK(memory_footprint(plain).einsum_masks == Bytes(16 * memory.einsum_masks.count));
  CHECK(memory_footprint(plain).total().gib() > 80);
}

TEST_CASE("checkpointing keeps one input per layer and one layer's tensors") {
  const Model model = Model::load("llama2-7b");
  MemoryQuery query;
  query.model = &model;
  query.gpus = 8;
  query.tokens = 8192;
  const std::int64_t layer = query.tokens * dense_layer_bytes(model);
  const std::int64_t head = query.tokens * (4 * model.hidden + 4 * model.vocabulary);
  CHECK(memory_footprint(query).activations == Bytes(32 * layer + head));
  query.checkpointing = true;
  const std::int64_t inputs = 32 * 2 * query.tokens * model.hidden;
  CHECK(memory_footprint(query).activations == Bytes(inputs + layer + head));
}

TEST_CASE("memory falls with every ZeRO stage") {
  const Model model = Model::load("mixtral-8x7b");
  MemoryQuery query;
  query.model = &model;
  query.experts = 8;
  query.gpus = 64;
  query.expert_parallel = 8;
  query.tokens = 4096;
  query.capacity = 1024;
  std::int64_t before = 0;
  for (int zero = 0; zero <= 3; ++zero) {
    query.zero = zero;
    const std::int64_t total = memory_footprint(query).total().count;
    CAPTURE(zero, total);
    CHECK((zero == 0 || total < before));
    before = total;
  }
}

TEST_CASE("a forward pass holds parameters and working tensors only") {
  const Model model = Model::load("llama2-7b-moe8");
  MemoryQuery query = paper_query(model);
  query.train = false;
  query.einsum = false;
  const MemoryFootprint memory = memory_footprint(query);
  CHECK(gb(memory.parameters) == Approx(2 * 6.739).margin(0.001));
  CHECK(memory.gradients.count == 0);
  CHECK(memory.optimizer.count == 0);
  CHECK(memory.einsum_masks.count == 0);
  // Residual stream, and the MoE FFN: 2 norm tensors and 16,384 rows of input, output and inner.
  const std::int64_t routes = 16384 * (4 * 8 + 16);
  const std::int64_t ffn = 16384LL * (2 * 2 * 4096 + 2 * 2 * 4096 + 6 * 11008) + routes;
  CHECK(memory.activations == Bytes(2 * 16384LL * 4096 + ffn));
}

TEST_CASE("a forward pass leaves keys and values") {
  const auto cache_of = [](const char* name, std::int64_t tokens, std::int64_t length) {
    const Model model = Model::load(name);
    MemoryQuery query;
    query.model = &model;
    query.train = false;
    query.tokens = tokens;
    query.sequence_length = length;
    if (model.moe) query.experts = model.moe->experts;
    const MemoryFootprint memory = memory_footprint(query);
    MemoryQuery trained = query;
    trained.train = true;
    CHECK(memory_footprint(trained).kv_cache.count == 0);
    CHECK(memory.total() == memory.parameters + memory.activations + memory.kv_cache +
                                memory.exchange_buffers + memory.workspace);
    return memory.kv_cache.count;
  };
  // Keys and values of 32 heads of 128; of 8 of them; in bf16.
  CHECK(cache_of("llama2-7b", 98'304, 2048) == 32LL * 2 * 4096 * 2 * 98'304);  // 48 GiB
  CHECK(cache_of("mixtral-8x7b", 4096, 4096) == 32LL * 2 * 8 * 128 * 2 * 4096);
  // A row of 512 and a rotated key of 64 per layer, whatever the heads.
  CHECK(cache_of("deepseek-v2-lite", 4096, 4096) == 27LL * (512 + 64) * 2 * 4096);
  // Every other one of 36 layers attends to 128 tokens.
  const std::int64_t per_token = 2LL * 8 * 64 * 2;
  CHECK(cache_of("gpt-oss-120b", 8192, 4096) == per_token * 18 * (8192 + 2 * 128));
  CHECK(cache_of("gpt-oss-120b", 8192, 64) == per_token * 36 * 8192);
  // Half of the layers are a decoder's, which attends to itself and to the encoder.
  const Model model = Model::load("switch-base-8");
  CHECK(cache_of("switch-base-8", 512, 512) == (model.layers - model.encoder_layers) * 2LL * 2 *
                                                   model.kv_heads * model.head_dim * 2 * 512);
}

TEST_CASE("a dense router has no exchange") {
  const Model model = Model::load("llama2-7b-moe8");
  const Model dense = Model::load("llama2-7b");
  MemoryQuery query = paper_query(model);
  query.experts = 0;
  MemoryQuery other = query;
  other.model = &dense;
  CHECK(memory_footprint(query).exchange_buffers.count == 0);
  CHECK(memory_footprint(query).einsum_masks.count == 0);
  CHECK(memory_footprint(query).total() == memory_footprint(other).total());
}

TEST_CASE("a layout that cannot be is refused") {
  const Model model = Model::load("llama2-7b-moe8");
  MemoryQuery query = paper_query(model);
  query.expert_parallel = 3;
  CHECK_THROWS_AS(memory_footprint(query), moesim::UsageError);
  query = paper_query(model);
  query.zero = 4;
  CHECK_THROWS_AS(memory_footprint(query), moesim::UsageError);
}
