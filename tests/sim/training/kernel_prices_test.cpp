#include "sim/training/prices/kernel_prices.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/training/prices/exchange_prices.hpp"
#include "sim/training/prices/host_launches.hpp"
#include "sim/training/prices/layer_prices.hpp"
#include "sim/training/step/layer_time.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::training;

namespace {

TrainingJob job(const char* profile, const char* cluster, const char* model = "qwen3-30b-a3b") {
  TrainingJob made;
  made.profile = std::make_shared<const profile::Profile>(profile::Profile::load(profile));
  made.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load(cluster));
  made.model = std::make_shared<const model::Model>(model::Model::load(model));
  made.layout.sizes.gpus = 8;
  made.layout.sizes.expert = 8;
  made.layout.sequence_length = 4096;
  made.layout.global_batch = 64;
  return made;
}

double teraflops(const KernelPrices::Product& product, double us) {
  return 2 * static_cast<double>(product.m * product.n) * static_cast<double>(product.k) / us *
         1e-6;
}

}  // namespace

TEST_CASE("long products run at the rate that the board's power allows") {
  const KernelPrices::Product longest = {16384, 16384, 16384};
  const TrainingJob b200 = job("b200-sxm", "hgx-b200");
  // 1,000 W at 0.94 pJ.
  CHECK(teraflops(longest, KernelPrices(b200).product_us(longest)) == Approx(1000 / 0.94));
  CHECK(b200.profile->gemm(16384, 16384, 16384).time_us < KernelPrices(b200).product_us(longest));
  // Small ones keep the curve's time.
  const KernelPrices::Product small = {256, 256, 256};
  CHECK(KernelPrices(b200).product_us(small) == b200.profile->gemm(256, 256, 256).time_us);
  const TrainingJob a100 = job("a100-sxm-80gb", "dgx-a100");
  CHECK(teraflops(longest, KernelPrices(a100).product_us(longest)) == Approx(400 / 1.72));
}

TEST_CASE("without what products hold, long ones run at the rate of the curve") {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("no-power-{}.json", getpid())).string();
  auto document = nlohmann::ordered_json::parse(read_file(find_document("hardware", "h100-sxm")));
  document["devices"][0].erase("sustained_bf16_flops");
  write_file_atomically(path, document.dump());
  const TrainingJob own = job(path.c_str(), "hgx-h100");
  CHECK(KernelPrices(own).product_us({16384, 16384, 16384}) ==
        own.profile->gemm(16384, 16384, 16384).time_us);
  std::filesystem::remove(path);
}

TEST_CASE("a profile that measured what products hold is priced by it") {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("own-power-{}.json", getpid()))
          .string();
  std::string text = read_file(find_document("hardware", "h100-sxm"));
  const std::string figure = "\"sustained_bf16_flops\": {\n        \"value\": ";
  const std::size_t at = text.find(figure);
  REQUIRE(at != std::string::npos);
  const std::size_t from = at + figure.size();
  text.replace(from, text.find(',', from) - from, "4e14");
  write_file_atomically(path, text);
  const TrainingJob own = job(path.c_str(), "hgx-h100");
  const KernelPrices::Product longest = {16384, 16384, 16384};
  CHECK(teraflops(longest, KernelPrices(own).product_us(longest)) == Approx(400));
  const TrainingJob shipped = job("h100-sxm", "hgx-h100");
  CHECK(teraflops(longest, KernelPrices(shipped).product_us(longest)) == Approx(700 / 1.06));
  std::filesystem::remove(path);
}

TEST_CASE("products of the shipped gb200 have the curve of its die, at its own power") {
  const TrainingJob gb200 = job("gb200", "gb200-nvl72");
  const TrainingJob b200 = job("b200-sxm", "hgx-b200");
  const KernelPrices::Product longest = {16384, 16384, 16384};
  CHECK(teraflops(longest, KernelPrices(gb200).product_us(longest)) == Approx(1200 / 0.94));
  const KernelPrices::Product small = {512, 512, 512};
  CHECK(KernelPrices(gb200).product_us(small) == KernelPrices(b200).product_us(small));
  // Its own curve is slower than the power allows.
  CHECK(gb200.profile->gemm(16384, 16384, 16384).time_us > KernelPrices(gb200).product_us(longest));
}

TEST_CASE("attention of the shipped gb200 takes no longer than that of its die") {
  TrainingJob gb200 = job("gb200", "gb200-nvl72", "deepseek-v3");
  TrainingJob b200 = job("b200-sxm", "hgx-b200", "deepseek-v3");
  for (const bool backward : {false, true}) {
    // Short: as measured on the board itself.
    for (TrainingJob* made : {&gb200, &b200}) {
      made->layout.sequence_length = 4096;
      made->layout.micro_batch = 1;
    }
    CHECK(KernelPrices(gb200).core_attention_us(backward) <
          KernelPrices(b200).core_attention_us(backward));
    // Long: the board had slowed down.
    for (TrainingJob* made : {&gb200, &b200}) {
      made->layout.sequence_length = 32768;
      made->layout.micro_batch = 2;
    }
    CHECK(gb200.profile->attention({2, 32768, 128, 128, 128}, backward).time_us >
          1.1 * b200.profile->attention({2, 32768, 128, 128, 128}, backward).time_us);
    CHECK(KernelPrices(gb200).core_attention_us(backward) ==
          KernelPrices(b200).core_attention_us(backward));
  }
}

TEST_CASE("FP8 products take no longer than bf16's, at expert sizes too") {
  TrainingJob low = job("b200-sxm", "hgx-b200");
  const KernelPrices wide(low);
  low.states.precision = model::Precision::mxfp8;
  const KernelPrices narrow(low);
  for (const KernelPrices::Product product :
       {KernelPrices::Product{4096, 1536, 2048}, {32768, 2048, 768}, {16384, 16384, 16384}}) {
    const double ratio = wide.product_us(product) / narrow.product_us(product);
    CHECK(ratio > 1);
    CHECK(ratio < 2.5);
    KernelPrices::Product head = product;
    head.is_wide = true;
    CHECK(narrow.product_us(head) == wide.product_us(product));
  }
  low.profile = job("a100-sxm-80gb", "dgx-a100").profile;
  CHECK_THROWS_AS(KernelPrices(low), Error);
}

TEST_CASE("products scaled by blocks gain less over bf16 than those scaled by tensor") {
  TrainingJob low = job("h100-sxm", "hgx-h100");
  const KernelPrices::Product product = {8192, 14336, 4096};
  const KernelPrices::Product narrow = {512, 2048, 7168};
  const double narrow_bf16_us = low.profile->gemm(512, 2048, 7168).time_us;
  low.states.precision = model::Precision::fp8_current;
  CHECK(narrow_bf16_us / KernelPrices(low).product_us(narrow) == Approx(1.9));
  CHECK(teraflops(product, KernelPrices(low).product_us(product)) == Approx(1300));
  // By block until the board's power, or what else holds such products in a step, is the limit.
  low.states.precision = model::Precision::fp8_block;
  CHECK(teraflops(product, KernelPrices(low).product_us(product)) == Approx(993));
  CHECK(narrow_bf16_us / KernelPrices(low).product_us(narrow) == Approx(1.7));
  // Where the profile does not say what they hold, by the energy of an FP8 FLOP: B200 at 1,000 W.
  TrainingJob blackwell = job("b200-sxm", "hgx-b200");
  blackwell.states.precision = model::Precision::fp8_block;
  const KernelPrices::Product longest = {16384, 16384, 16384};
  CHECK(teraflops(longest, KernelPrices(blackwell).product_us(longest)) ==
        Approx(1000 / 0.94 / 0.42));
}

// As moesim profile writes it: FP8 products alone, no cast of A in the curve.
TEST_CASE("a profile that measured FP8 products alone is priced by their curve") {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("own-fp8-{}.json", getpid())).string();
  auto document = nlohmann::ordered_json::parse(read_file(find_document("hardware", "h100-sxm")));
  // The curve's price, whatever the power.
  document["devices"][0].erase("sustained_bf16_flops");
  document["devices"][0].erase("sustained_fp8_flops");
  document["devices"][0].erase("sustained_fp8_block_flops");
  for (auto& curve : document["curves"]) {
    if (curve["op"] == "gemm") curve["physics"].erase("input_us_per_element");
  }
  write_file_atomically(path, document.dump());
  TrainingJob own = job(path.c_str(), "hgx-h100");
  own.states.precision = model::Precision::fp8_current;
  const KernelPrices::Product product = {8192, 4096, 7168};
  CHECK(KernelPrices(own).product_us(product) ==
        own.profile->gemm(8192, 4096, 7168, "fp8").time_us);
  own.states.precision = model::Precision::fp8_block;
  CHECK(KernelPrices(own).product_us(product) ==
        own.profile->gemm(8192, 4096, 7168, "fp8_block").time_us);
  std::filesystem::remove(path);
}

TEST_CASE("experts apart wait for their weights, one kernel hides the reads") {
  TrainingJob experts = job("b200-sxm", "hgx-b200", "deepseek-v3");
  // 32 experts of 1,024 rows: published 1.87 ms in Transformer Engine (SimuMax, B200).
  const KernelPrices::Product grouped = {32768, 4096, 7168, 32};
  const KernelPrices::Product dense = {32768, 4096, 7168};
  const double apart = KernelPrices(experts).product_us(grouped);
  CHECK(apart > KernelPrices(experts).product_us(dense));
  CHECK(apart == Approx(1870).epsilon(0.25));
  experts.fused_experts = true;
  CHECK(KernelPrices(experts).product_us(grouped) == KernelPrices(experts).product_us(dense));
}

namespace {

double part_us(const TrainingJob& made, TrainingPart part, bool backward) {
  return layer_time(made, LayerExtent::moe, backward)[static_cast<std::size_t>(part)];
}

}  // namespace

TEST_CASE("experts without a gate multiply by the routes' weights in operations of their own") {
  const TrainingJob gated = job("h100-sxm", "hgx-h100", "mixtral-8x7b");
  TrainingJob plain = gated;
  model::Model two_matrices = *gated.model;
  two_matrices.gated = false;
  plain.model = std::make_shared<const model::Model>(two_matrices);
  const KernelPrices prices(plain);
  const double rows = 2 * plain.tokens_per_rank() * forced_load(plain).computed;
  const double cells = rows * 14336;
  const double products_us = prices.product_us({std::llround(rows), 14336, 4096}) +
                             prices.product_us({std::llround(rows), 4096, 14336});
  // GELU reads and writes bf16, the product is written in fp32 and cast: 4 + 6 + 6 bytes at the
  // curve; backward 6 and 34.
  CHECK(part_us(plain, TrainingPart::experts, false) ==
        Approx(products_us + plain.profile->memory(16 * cells).time_us));
  const double by_weight_us =
      2 * prices.product_us({4096, 14336, std::llround(rows), 1, false, true});
  // Gradients in fp32 are read and written, of which the product's bf16 is part.
  const double added_us =
      2 * prices.memory_us(6.0 * 4096 * 14336, profile::MemoryKernel::streaming);
  CHECK(part_us(plain, TrainingPart::experts, true) ==
        Approx(products_us + by_weight_us + added_us + plain.profile->memory(40 * cells).time_us));
}

// In operations of PyTorch, which one kernel for all experts has inside.
TEST_CASE("clamps before the activation read and write what they clamp") {
  TrainingJob clamped = job("b200-sxm", "hgx-b200", "gpt-oss-120b");
  TrainingJob free = clamped;
  model::Model unclamped = *clamped.model;
  unclamped.moe->clamped = false;
  free.model = std::make_shared<const model::Model>(unclamped);
  const KernelPrices prices(clamped);
  const double rows = 4 * clamped.tokens_per_rank() * forced_load(clamped).computed;
  const double entering = 2 * 2880 * rows;
  const auto longer = [&](bool backward) {
    return part_us(clamped, TrainingPart::experts, backward) -
           part_us(free, TrainingPart::experts, backward);
  };
  CHECK(longer(false) == Approx(prices.memory_us(8 * entering, profile::MemoryKernel::streaming)));
  CHECK(longer(true) == Approx(prices.memory_us(10 * entering, profile::MemoryKernel::streaming)));
  clamped.recompute = free.recompute = model::parse_recompute("moe_act", "");
  const auto again_us = [](const TrainingJob& made) {
    return LayerPrices(made)
        .layer(true)
        .input_gradient[static_cast<std::size_t>(TrainingPart::recompute)];
  };
  CHECK(again_us(clamped) - again_us(free) == Approx(longer(false)));
  clamped.fused_experts = free.fused_experts = true;
  CHECK(longer(false) == 0);
  CHECK(longer(true) == 0);
}

TEST_CASE("rows are sorted by expert behind an all-to-all where a rank has several") {
  TrainingJob one = job("h100-sxm", "hgx-h100", "mixtral-8x7b");
  TrainingJob two = one;
  two.layout.sizes.expert = 4;
  const double sorted_us =
      part_us(two, TrainingPart::router, false) - part_us(one, TrainingPart::router, false);
  const double rows_bytes = 2.0 * 2 * 4096 * 4096;  // k rows of a token, bf16
  const KernelPrices prices(one);
  CHECK(sorted_us > 1.9 * prices.memory_us(2 * rows_bytes, profile::MemoryKernel::streaming));
  one.dispatcher = two.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  // No sorting: a token's 2 rows are made from 13 / 7 copies where ranks have two of 8 experts.
  const auto router_us = [](const TrainingJob& made) {
    return LayerPrices(made)
        .moe_layer({1, 1})
        .forward[static_cast<std::size_t>(TrainingPart::router)];
  };
  const double made_us = router_us(two) - router_us(one);
  CHECK(made_us == Approx(prices.rows_moved_us(13.0 / 7 * 4096, 2 * 4096) -
                          prices.rows_moved_us(2 * 4096, 2 * 4096))
                       .epsilon(0.01));
}

TEST_CASE("core attention of windows and in FP8 takes part of the time") {
  TrainingJob full = job("b200-sxm", "hgx-b200", "gpt-oss-120b");
  const double windows = KernelPrices(full).core_attention_us(false);
  model::Model without = *full.model;
  without.window.reset();
  TrainingJob other = full;
  other.model = std::make_shared<const model::Model>(without);
  // Half of the layers see 126 of 2,048 keys: (800 + 126) / (800 + 2048) of the time.
  CHECK(windows == Approx(0.6626 * KernelPrices(other).core_attention_us(false)).epsilon(0.001));
  full.fp8_attention = true;
  CHECK(KernelPrices(full).core_attention_us(false) == Approx(0.7 * windows));
  CHECK(KernelPrices(full).core_attention_us(true) > 2 * 0.7 * windows);
}

TEST_CASE("attention in a window takes a long sequence no longer per token") {
  TrainingJob windowed = job("b200-sxm", "hgx-b200", "gpt-oss-120b");
  model::Model everywhere = *windowed.model;
  everywhere.window->full_every = 0;
  windowed.model = std::make_shared<const model::Model>(everywhere);
  const auto per_token = [&](std::int64_t length) {
    windowed.layout.sequence_length = length;
    return KernelPrices(windowed).core_attention_us(false) / static_cast<double>(length);
  };
  CHECK(per_token(131072) == Approx(per_token(16384)).epsilon(0.15));
  CHECK(per_token(131072) < 1.5 * per_token(4096));
}

TEST_CASE("a dispatcher takes a token to the groups that its router keeps") {
  TrainingJob kept = job("h100-sxm", "hgx-h100", "deepseek-v3");
  kept.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  kept.layout.sizes.gpus = kept.layout.sizes.expert = 64;
  const auto exchange_us = [](const TrainingJob& each) {
    return ExchangePrices(each).dispatch_us(profile::DispatcherStage::dispatch, {});
  };
  TrainingJob any = kept;
  any.forced_groups = KeptGroups{};
  // 4 of 8 nodes instead of 5.29, through the NIC.
  CHECK(exchange_us(kept) == Approx(4 / 5.29 * exchange_us(any)).epsilon(0.06));
  // Forced balance keeps the groups of the router that it is compared with, and needs no k of the
  // model's own.
  DrawnRouting drawn;
  drawn.router = routing::parse_router("topk", 4);
  kept.routing = drawn;
  CHECK(exchange_us(with_forced_balance(kept)) == exchange_us(kept));
  CHECK(with_forced_balance(kept).kept_groups().groups == 1);
}

TEST_CASE("graphs take launches from the host, fewer with fewer parts in them") {
  TrainingJob launched = job("b200-sxm", "hgx-b200");
  const auto forward = [&](Graphs graphs) {
    launched.graphs = graphs;
    return host_launches(launched, true).forward;
  };
  const double none = forward(Graphs::none);
  const double router = forward(Graphs::router);
  const double parts = forward(Graphs::parts);
  CHECK(none > router);
  CHECK(router > parts);
  CHECK(parts > 0);
  CHECK(forward(Graphs::layers) == 0);
  CHECK(forward_wait_us(launched, true, 1, 1) == 0);
  // Two queues that run empty, one before the host reads and one after.
  launched.graphs = Graphs::none;
  launched.host = {10, 20, 0};
  const HostLaunches count = host_launches(launched, true);
  CHECK(forward_wait_us(launched, true, 100, 1e6) == Approx(10 * count.before - 100 + 20));
  CHECK(forward_wait_us(launched, false, 1e6, 1e6) == 0);
  const BackwardTimes waits = backward_wait_us(launched, true, {});
  CHECK(waits.input_gradient_us == Approx(2 * 10 * count.forward));
  CHECK(waits.weight_gradient_us == 0);
}

TEST_CASE("weight gradients that are an operation of their own wait for their own launches") {
  TrainingJob launched = job("b200-sxm", "hgx-b200");
  launched.host = {10, 20, 0};
  launched.layout.sizes.expert = 8;
  const HostLaunches count = host_launches(launched, true);
  const double local = launched.model->moe->experts / 8.0;
  // A product each: queries, keys and values in one, the output, the gate, two of each expert.
  CHECK(launched.model->moe->shared_ffn == 0);
  CHECK(count.weight_gradient == 3 + 2 * local);
  const double by_input = count.backward() - count.weight_gradient;
  const auto waits = [&](parallel::ScheduleKind schedule, BackwardTimes kernels) {
    launched.layout.schedule = schedule;
    const BackwardTimes found = backward_wait_us(launched, true, kernels);
    return std::pair(found.input_gradient_us, found.weight_gradient_us);
  };
  using parallel::ScheduleKind;
  using Waits = std::pair<double, double>;
  const double more = 10 * count.weight_gradient + 500;  // than its launches take
  for (const ScheduleKind zero_bubble : {ScheduleKind::zb_h1, ScheduleKind::zb_h2}) {
    CHECK(waits(zero_bubble, {100, 30}) ==
          Waits(10 * by_input - 100, 10 * count.weight_gradient - 30));
    CHECK(waits(zero_bubble, {100, more}) == Waits(10 * by_input - 100, 0));
  }
  // In one operation the host launches the next kernels under a long product.
  const double both = 10 * count.backward() - 100;
  CHECK(waits(ScheduleKind::one_f_one_b, {100, 30}) == Waits(both - 30, 0));
  CHECK(waits(ScheduleKind::one_f_one_b, {100, more}) == Waits(both - more, 0));
  CHECK(waits(ScheduleKind::dualpipe, {100, more}) == Waits(both - more, 0));
  CHECK(waits(ScheduleKind::dualpipe, {100, 30}) ==
        Waits(10 * by_input - 100, 10 * count.weight_gradient - 30));
  CHECK(waits(ScheduleKind::dualpipe, {1e9, 0}) == Waits(0, 0));
  // What is computed again is launched, and its rows are read, before the input's gradients.
  launched.recompute = model::parse_recompute("moe", "test");
  const double again = host_launches(launched, true).recomputed;
  CHECK(waits(ScheduleKind::zb_h1, {100, 30}) ==
        Waits(10 * (by_input + again) - 100 + 20, 10 * count.weight_gradient - 30));
  launched.fused_experts = true;
  CHECK(host_launches(launched, true).weight_gradient == 5);
}

TEST_CASE("the host launches two kernels for each local expert, at most four for all in one call") {
  TrainingJob launched = job("b200-sxm", "hgx-b200");
  const auto saved = [&](int expert_ranks) {
    launched.layout.sizes.expert = expert_ranks;
    launched.fused_experts = false;
    const double apart = host_launches(launched, true).forward;
    launched.fused_experts = true;
    return apart - host_launches(launched, true).forward;
  };
  CHECK(saved(launched.model->moe->experts) == 0);
  const double local = launched.model->moe->experts / 8.0;
  CHECK(saved(8) == 2 * local - 4);
  // The layer's part of the pass is issued again: with its router, without attention.
  launched.recompute = model::parse_recompute("moe", "test");
  HostLaunches count = host_launches(launched, true);
  CHECK(count.recomputed == count.forward - 40);
  launched.graphs = Graphs::parts;
  count = host_launches(launched, true);
  CHECK(count.recomputed == count.forward - 1);
}

TEST_CASE("rectification is launched: a choice more for each, and the rows of IR") {
  TrainingJob launched = job("b200-sxm", "hgx-b200");
  launched.layout.sizes.expert = 8;
  DrawnRouting drawn;
  const auto more = [&](const char* router, Graphs graphs) {
    launched.graphs = graphs;
    drawn.router = routing::parse_router("top8", 8);
    launched.routing = drawn;
    const HostLaunches plain = host_launches(launched, true);
    drawn.router = routing::parse_router(router, 8);
    launched.routing = drawn;
    const HostLaunches rectifying = host_launches(launched, true);
    CHECK(rectifying.weight_gradient == plain.weight_gradient);
    return std::pair(rectifying.before - plain.before, rectifying.forward - plain.forward);
  };
  using More = std::pair<double, double>;  // before the host reads rows, in all
  CHECK(more("top8+fr", Graphs::none) == More(10, 10));
  CHECK(more("top8+ir", Graphs::none) == More(10, 12));
  CHECK(more("top8+fr+ir", Graphs::none) == More(20, 22));
  CHECK(more("top8+fr+ir@node", Graphs::none) == More(20, 22));
  // A graph of the router has the choices in it.
  CHECK(more("top8+fr+ir", Graphs::router) == More(0, 2));
  CHECK(more("top8+fr+ir", Graphs::layers) == More(0, 0));
}

TEST_CASE("experts of one rank are exchanged with none, but their rows are read") {
  TrainingJob launched = job("b200-sxm", "hgx-b200");
  launched.host = {10, 20, 0};
  launched.layout.sizes.expert = 8;
  const double many = host_launches(launched, true).forward;
  launched.layout.sizes.expert = 1;
  const double one = host_launches(launched, true).forward;
  const double experts = launched.model->moe->experts;
  CHECK(one - many == 2 * (experts - experts / 8) - 30);
  CHECK(forward_wait_us(launched, true, 1e6, 1e6) == 20);
}

TEST_CASE("whose curves price products is said by the document, not by its name") {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("own-products-{}.json", getpid()))
          .string();
  std::string text = read_file(find_document("hardware", "gb200"));
  const auto replace = [&](const std::string& old, const std::string& value) {
    text.replace(text.find(old), old.size(), value);
    write_file_atomically(path, text);
  };
  replace("\"name\": \"gb200\"", "\"name\": \"own\"");
  const TrainingJob own = job(path.c_str(), "gb200-nvl72");
  const TrainingJob gb200 = job("gb200", "gb200-nvl72");
  CHECK(own.profile->name() == "own");
  const KernelPrices::Product product = {8192, 4096, 7168};
  CHECK(KernelPrices(own).product_us(product) == KernelPrices(gb200).product_us(product));
  replace("\"profile\": \"b200-sxm\"", "\"profile\": \"gb200\"");
  CHECK_THROWS_WITH(profile::Profile::load(path),
                    ContainsSubstring("expected a profile without training_products of its own"));
  std::filesystem::remove(path);
}
