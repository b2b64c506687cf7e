#include "sim/training/prices/layer_prices.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/model/memory/training_exchanges.hpp"
#include "sim/training/prices/exchange_prices.hpp"
#include "sim/training/prices/kernel_prices.hpp"
#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/training_job.hpp"

using namespace moesim;
using namespace moesim::training;

namespace {

// An H100 whose copies to and from the host were measured.
std::shared_ptr<const profile::Profile> copying_at(double bytes_per_second) {
  auto document = nlohmann::ordered_json::parse(read_file(find_document("hardware", "h100-sxm")));
  document["devices"][0]["host_copy_bytes_per_second"] = {{"value", bytes_per_second},
                                                          {"unit", "bytes/s per direction"},
                                                          {"origin", "measured"},
                                                          {"source", "a test"}};
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("own-copies-{}.json", getpid()))
          .string();
  write_file_atomically(path, document.dump());
  auto loaded = std::make_shared<const profile::Profile>(profile::Profile::load(path));
  std::filesystem::remove(path);
  return loaded;
}

}  // namespace

TEST_CASE("offloading costs what computing does not hide") {
  TrainingJob plain = qwen_on_h100(8, 1, 8, 64);
  const TrainingStep before = training_step(plain);
  TrainingJob offloading = plain;
  offloading.offload.add(model::OffloadModule::attn_norm);
  const TrainingStep hidden = training_step(offloading);
  CHECK(part(hidden, TrainingPart::offload) == 0);
  CHECK(hidden.step_us == Approx(before.step_us));
  CHECK(hidden.peak_memory() < before.peak_memory());
  // All of them: what each copy takes beyond the layer's own pass, at 0.8 of PCIe 5.0.
  CHECK(plain.profile->device().host_bandwidth.bytes_per_second == 64e9);
  for (const auto& known : model::offload_names) offloading.offload.add(known.value);
  const TrainingStep all = training_step(offloading);
  const LayerPrices prices(plain);
  const Passes& layer = prices.layer(true);
  const double bytes =
      4096 * model::offloaded_bytes(*plain.model, model::LayerKind::moe, offloading.shards(),
                                    offloading.activation_rules(prices.imbalance()));
  const double copy_us = bytes / (0.8 * 64e9) * 1e6;
  const double backward_us = sum(layer.input_gradient) + sum(layer.weight_gradient);
  const double waits_us =
      std::max(0.0, copy_us - sum(layer.forward)) + std::max(0.0, copy_us - backward_us);
  CHECK(waits_us > 0);
  CHECK(part(all, TrainingPart::offload) == Approx(8 * 48 * waits_us));
  TrainingJob measured = offloading;
  measured.profile = copying_at(0.8 * 64e9);
  CHECK(part(training_step(measured), TrainingPart::offload) ==
        Approx(part(all, TrainingPart::offload)));
  measured.profile = copying_at(0.4 * 64e9);
  CHECK(part(training_step(measured), TrainingPart::offload) > part(all, TrainingPart::offload));
  offloading.recompute.full = model::FullRecompute::uniform;
  CHECK_THROWS_WITH(training_step(offloading), ContainsSubstring("--recompute full"));
  offloading.recompute = {};
  offloading.graphs = Graphs::layers;
  CHECK_THROWS_WITH(training_step(offloading), ContainsSubstring("--cuda-graphs layers"));
}

TEST_CASE("rows in the format of the products make dispatch shorter, not combine") {
  TrainingJob wide = qwen_on_h100(64, 1, 64, 64);
  wide.states.precision = model::Precision::fp8_block;
  TrainingJob narrow = wide;
  narrow.low_precision_dispatch = true;
  CHECK(narrow.dispatched_element_bytes() == 1.03125);
  const ExchangePrices of_wide(wide);
  const ExchangePrices of_narrow(narrow);
  const auto times = [](const ExchangePrices& prices, profile::DispatcherStage stage) {
    return prices.dispatch_us(stage, {});
  };
  CHECK(times(of_narrow, profile::DispatcherStage::combine) ==
        times(of_wide, profile::DispatcherStage::combine));
  // 448 MiB over NICs: nearly in proportion to the bytes.
  CHECK(times(of_narrow, profile::DispatcherStage::dispatch) /
            times(of_wide, profile::DispatcherStage::dispatch) ==
        Approx(1.03125 / 2).epsilon(0.1));
  // Forward the rows, backward the gradients that go to the experts: both pairs by a quarter.
  const TrainingStep before = training_step(wide);
  const TrainingStep after = training_step(narrow);
  const double ratio = (part(after, TrainingPart::dispatch) + part(after, TrainingPart::combine)) /
                       (part(before, TrainingPart::dispatch) + part(before, TrainingPart::combine));
  CHECK(ratio == Approx(0.75).epsilon(0.05));
  CHECK(part(after, TrainingPart::experts) <
        part(before, TrainingPart::experts));  // cast by column alone
  CHECK(part(after, TrainingPart::router) >
        part(before, TrainingPart::router));  // cast before the dispatch
}

TEST_CASE("exchanges of tensor ranks hide under their products but for the first piece") {
  TrainingJob apart = qwen_on_h100(8, 1, 4, 8);
  apart.layout.sizes.tensor = 2;
  TrainingJob beside = apart;
  beside.overlaps_tensor = true;
  const double exposed = part(training_step(apart), TrainingPart::tensor);
  const double left = part(training_step(beside), TrainingPart::tensor);
  CHECK(exposed > 0);
  CHECK(left >= exposed / 2);
  CHECK(left < exposed);
  CHECK(training_step(beside).step_us < training_step(apart).step_us);
}

TEST_CASE("tensor ranks divide a prediction depth's projection and exchange its vectors") {
  using parallel::GroupKind;
  using profile::Collective;
  using profile::MemoryKernel;
  TrainingJob made = qwen_on_h100(8, 1, 8, 8);
  made.model = std::make_shared<const model::Model>(model::Model::load("deepseek-v3"));
  const double token = 2.0 * 7168;  // bytes of a hidden vector
  for (const int tensor : {1, 2, 4}) {
    made.layout.sizes.tensor = tensor;
    const KernelPrices kernels(made);
    const LayerPrices prices(made);
    const Passes& depth = prices.prediction();
    const double own = token * 4096 / tensor;  // of a rank's tokens
    // The embedding read again; norms of the embedded tokens, of the model's hidden vectors and of
    // the layer's output; outputs divided among ranks.
    const std::int64_t outputs = 7168 / tensor;
    CHECK(depth.forward[at(TrainingPart::head)] ==
          Approx(kernels.memory_us(2 * own, MemoryKernel::streaming) +
                 3 * kernels.memory_us(2 * own, MemoryKernel::normalization) +
                 kernels.product_us({4096, outputs, 14336})));
    CHECK(depth.input_gradient[at(TrainingPart::head)] ==
          Approx(kernels.memory_us(3 * own, MemoryKernel::streaming) +
                 3 * kernels.memory_us(4 * own, MemoryKernel::normalization) +
                 kernels.product_us({4096, 14336, outputs})));
    const auto among = [&](Collective kind, double bytes) {
      return prices.exchanges().exchange_us(kind, GroupKind::tensor, bytes);
    };
    const double all = token * 4096;  // 2 T h
    const double gathered = among(Collective::all_gather, all);
    const double inputs = among(Collective::all_gather, 2 * all);
    CHECK((gathered > 0) == (tensor > 1));
    CHECK(depth.forward[at(TrainingPart::tensor)] ==
          Approx(among(Collective::reduce_scatter, all) + inputs + gathered));
    CHECK(depth.input_gradient[at(TrainingPart::tensor)] ==
          Approx(2 * gathered + inputs + among(Collective::reduce_scatter, 2 * all)));
  }
}

TEST_CASE("FP8 shortens long products, not the head") {
  TrainingJob low = qwen_on_h100(8, 1, 8, 64);
  // Products of 4,096 x 14,336; those of Qwen's small experts are shorter in bf16.
  low.model = std::make_shared<const model::Model>(model::Model::load("mixtral-8x7b"));
  low.profile = std::make_shared<const profile::Profile>(profile::Profile::load("b200-sxm"));
  low.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-b200"));
  low.layout.micro_batch = 2;
  const TrainingStep wide = training_step(low);
  low.states.precision = model::Precision::mxfp8;
  const TrainingStep narrow = training_step(low);
  CHECK(part(narrow, TrainingPart::experts) < part(wide, TrainingPart::experts));
  CHECK(part(narrow, TrainingPart::experts) > part(wide, TrainingPart::experts) / 2);
  CHECK(part(narrow, TrainingPart::head) == part(wide, TrainingPart::head));
  // The weights of products are cast once, those of a prediction depth's projection too.
  CHECK(part(narrow, TrainingPart::optimizer) > part(wide, TrainingPart::optimizer));
  auto deep = std::make_shared<model::Model>(*low.model);
  deep->mtp_depths = 1;
  low.model = deep;
  const auto projection_us = [&](model::Precision precision) {
    low.states.precision = precision;
    return LayerPrices(low).prediction().forward[at(TrainingPart::head)];
  };
  CHECK(projection_us(model::Precision::mxfp8) < projection_us(model::Precision::bf16));
  low.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  low.states.precision = model::Precision::nvfp4;
  CHECK_THROWS_WITH(training_step(low), ContainsSubstring("nvfp4"));
}

TEST_CASE("one scale per tensor needs no cast by column but on Hopper") {
  TrainingJob low = qwen_on_h100(8, 1, 8, 64);
  low.profile = std::make_shared<const profile::Profile>(profile::Profile::load("b200-sxm"));
  low.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-b200"));
  const double rows = 4096.0 * 8;
  const auto experts_us = [&](model::Precision precision, bool transposed) {
    low.states.precision = precision;
    low.states.transposed_copies = transposed;
    return LayerPrices(low).moe_layer({1, 1}).forward[at(TrainingPart::experts)];
  };
  // bf16 read, once more for a scale of this tensor, and a byte written for each direction; of the
  // inputs of both products.
  for (const auto& [precision, read] : {std::pair(model::Precision::fp8_current, 4.0),
                                        std::pair(model::Precision::fp8_delayed, 2.0)}) {
    double second_us = 0;
    for (const double columns : {2048.0, 768.0}) {
      const auto cast_us = [&](double bytes) {
        return KernelPrices(low).memory_us(bytes * rows * columns,
                                           profile::MemoryKernel::streaming);
      };
      second_us += cast_us(read + 2) - cast_us(read + 1);
    }
    CHECK(experts_us(precision, true) - experts_us(precision, false) == Approx(second_us));
  }
  // Scales in blocks are of one direction each.
  CHECK(experts_us(model::Precision::mxfp8, true) == experts_us(model::Precision::mxfp8, false));
}

TEST_CASE("one kernel for experts has no activation and fewer casts of its own") {
  TrainingJob fused = qwen_on_h100(8, 1, 8, 64);
  fused.profile = std::make_shared<const profile::Profile>(profile::Profile::load("b200-sxm"));
  fused.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-b200"));
  fused.layout.micro_batch = 4;
  const auto saved = [&](model::Precision precision) {
    fused.states.precision = precision;
    fused.fused_experts = false;
    const double apart = part(training_step(fused), TrainingPart::experts);
    fused.fused_experts = true;
    return apart - part(training_step(fused), TrainingPart::experts);
  };
  // bf16: the activation, 2 x (3 + 5) bytes per inner cell, at least at the peak bandwidth.
  const double rows = 4096.0 * 4 * 8 * 48 * 2;  // k rows per token, layers, micro-batches
  const double bytes = rows * 768 * 2 * (3 + 5);
  CHECK(saved(model::Precision::bf16) > bytes / 8e12 * 1e6);
  CHECK(saved(model::Precision::mxfp8) > saved(model::Precision::bf16));
}

TEST_CASE("norms of queries and keys take time") {
  TrainingJob normed = qwen_on_h100(8, 1, 8, 64);
  const double with = part(training_step(normed), TrainingPart::attention);
  model::Model plain = *normed.model;
  CHECK(plain.query_key_norm);
  plain.query_key_norm = false;
  normed.model = std::make_shared<const model::Model>(plain);
  const double without = part(training_step(normed), TrainingPart::attention);
  CHECK(with > without);
  CHECK(with < 1.2 * without);
}

TEST_CASE("a ring is hidden by core attention alone, once per direction") {
  TrainingJob ring = qwen_on_h100(16, 1, 8, 16);
  ring.layout.sizes.context = 16;
  ring.layout.sequence_length = 32768;
  TrainingJob gathered = ring;
  gathered.layout.context_method = model::ContextMethod::all_gather;
  const double hidden = part(training_step(ring), TrainingPart::context);
  const double exposed = part(training_step(gathered), TrainingPart::context);
  CHECK(exposed > 0);
  CHECK(hidden < exposed);
  CHECK(hidden >= exposed - part(training_step(ring), TrainingPart::attention));
}

TEST_CASE("recomputing a module takes its own forward time, whatever the split") {
  TrainingJob activations = qwen_on_h100(16, 1, 8, 64);
  activations.layout.sizes.tensor = 2;
  activations.recompute = model::parse_recompute("moe_act", "test");
  const double whole = part(training_step(activations), TrainingPart::recompute);
  activations.layout.sizes.expert_tensor = 2;
  activations.layout.sizes.expert = 4;
  // Twice the rows of half the width.
  CHECK(part(training_step(activations), TrainingPart::recompute) == Approx(whole).epsilon(0.05));
}

TEST_CASE("slices of experts gather and reduce as many rows as their rank computes") {
  TrainingJob sliced = qwen_on_h100(16, 1, 4, 64);
  const double none = LayerPrices(sliced).moe_layer({1, 1}).forward[at(TrainingPart::tensor)];
  sliced.layout.sizes.expert_tensor = 2;
  const LayerPrices prices(sliced);
  const auto slices_us = [&](double load) {
    return prices.moe_layer({load, 1}).forward[at(TrainingPart::tensor)] - none;
  };
  CHECK(none == 0);
  CHECK(slices_us(1) > 0);
  // Long messages: time goes with bytes.
  CHECK(slices_us(3) == Approx(3 * slices_us(1)).epsilon(0.1));
}

TEST_CASE("behind an all-to-all a rank permutes the rows of its own tokens") {
  TrainingJob made =
      qwen_on_h100(256, 1, 128, 512);  // one expert a rank: no rows to sort by expert
  const auto router_us = [&](double load) {
    return LayerPrices(made).moe_layer({load, load}).forward[at(TrainingPart::router)];
  };
  const double own_us = router_us(1);
  CHECK(router_us(3) == own_us);
  CHECK(router_us(0.5) < own_us);  // a capacity drops rows
  made.layout.sizes.expert_tensor = 2;
  CHECK(router_us(1) == own_us);  // slices gather their rows behind the exchange
  made.layout.sizes.expert_tensor = 1;
  made.capacity_factor = 1.5;  // padded: all slots
  CHECK(router_us(1.5) > 1.2 * own_us);
  made.capacity_factor = 0;
  made.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  CHECK(router_us(3) > 1.5 * router_us(1));
}

TEST_CASE("behind a dispatcher a rank makes rows from the copies that came") {
  // The rest of the router is the same; one expert a rank: NCCL's rows are not sorted besides.
  const TrainingJob nccl = qwen_on_h100(256, 1, 128, 512);
  const auto rest_us = [](const TrainingJob& made, double copies, double rows) {
    const double tokens = made.tokens_per_rank();
    return LayerPrices(made).moe_layer({1, 1}).forward[at(TrainingPart::router)] -
           KernelPrices(made).rows_moved_us(copies * tokens, rows * tokens);
  };
  TrainingJob made = qwen_on_h100(8, 1, 8, 8);
  made.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  // 128 experts, k 8: a token meets 8 (1 - C(112, 8) / C(128, 8)) of 8 ranks; of 4 pairs
  // 4 (1 - C(96, 8) / C(128, 8)), a copy to both slices.
  CHECK(rest_us(made, 5.33936, 8) == Approx(rest_us(nccl, 1, 8)).epsilon(0.01));
  TrainingJob fused = made;  // HybridEP pads rows as it permutes them
  fused.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("hybridep"));
  CHECK(rest_us(fused, 1, 8) == Approx(rest_us(nccl, 1, 8)).epsilon(0.01));
  made.layout.sizes.expert = 4;
  made.layout.sizes.expert_tensor = 2;
  CHECK(rest_us(made, 7.25802, 16) == Approx(rest_us(nccl, 1, 8)).epsilon(0.01));
}

TEST_CASE("rows of slices are sorted by expert where these come from several ranks") {
  TrainingJob made = qwen_on_h100(16, 1, 1, 64);  // all experts on each rank
  const double alone_us = LayerPrices(made).moe_layer({1, 1}).forward[at(TrainingPart::router)];
  made.layout.sizes.expert_tensor = 2;
  CHECK(LayerPrices(made).moe_layer({1, 1}).forward[at(TrainingPart::router)] > 1.2 * alone_us);
}

TEST_CASE("what is recomputed exchanges again") {
  // The shared experts are in the MoE layer, with what their tensor ranks exchange.
  TrainingJob shared = qwen_on_h100(64, 1, 8, 64);
  shared.model = std::make_shared<const model::Model>(model::Model::load("deepseek-v3-4layers"));
  shared.layout.sizes.tensor = 8;
  const auto again = [](TrainingJob asked, const char* modules) {
    asked.recompute = model::parse_recompute(modules, "test");
    return part(training_step(asked), TrainingPart::recompute);
  };
  TrainingJob without = shared;
  model::Model less = *shared.model;
  less.moe->shared_ffn = 0;
  without.model = std::make_shared<const model::Model>(less);
  const double of_shared = again(shared, "shared_experts");
  CHECK(of_shared > 0);
  CHECK(again(shared, "moe") == Approx(again(without, "moe") + of_shared));
  CHECK(again(shared, "moe,shared_experts") == Approx(again(shared, "moe")));
  // Core attention of context ranks gathers keys and values: 48 layers, 8 micro-batches.
  TrainingJob pieces = qwen_on_h100(16, 1, 8, 16);
  pieces.layout.sizes.context = 8;
  pieces.layout.context_method = model::ContextMethod::all_gather;
  const ExchangePrices exchanges(pieces);
  const double gather_us =
      exchanges.times(model::context_exchanges(exchanges.query(), false)).context_us;
  CHECK(gather_us > 0);
  CHECK(again(pieces, "core_attn") ==
        Approx(48 * 8 * (KernelPrices(pieces).core_attention_us(false) + gather_us)));
}
