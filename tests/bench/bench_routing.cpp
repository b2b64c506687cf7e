// Routers and logits, routes or logits per second on one core.
//   route/E/S/level     softmax, top-2, capacity (CF 2), token-max, slots and weights from logits
//   router/NAME         a router of another kind on the logits of 8 ranks of 2,048 tokens, 64
//   experts draw/E/level        gaussian logits simulate/jobs       the paper's layer (32 GPUs of
//   16,384 tokens, 8 experts) under `jobs` routers
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"

namespace {

using namespace moesim;
using namespace moesim::routing;

constexpr int all_levels[] = {0, 1, 2};

bool skip_missing(benchmark::State& state, SimdLevel level) {
  if (level <= best_simd_level()) return false;
  state.SkipWithError((std::string("this CPU has no ") + name_of(level)).c_str());
  return true;
}

void route(benchmark::State& state) {
  const int experts = static_cast<int>(state.range(0));
  const std::int64_t tokens = state.range(1);
  const auto level = static_cast<SimdLevel>(state.range(2));
  if (skip_missing(state, level)) return;
  const LogitSource source(parse_score_source("gaussian:0.1", "scores"), experts, 1, 0, 0);
  const std::vector<float> logits = source.rank_logits(0, tokens, tile_kernels(level));
  const RankLogits rank{logits, tokens};
  GroupRouter router(parse_router("top2", 0), experts, 1, level);
  for (auto _ : state) benchmark::DoNotOptimize(router.route({&rank, 1}).slot.data());
  state.SetItemsProcessed(state.iterations() * tokens * 2);
  state.SetLabel(name_of(level));
}

// The names are those of --router, k = 2 where a name has none; the capacity is that of the peers.
void router(benchmark::State& state, const std::string& name) {
  constexpr int ranks = 8;
  constexpr std::int64_t tokens = 2048;
  constexpr int experts = 64;
  const TileKernels& kernels = tile_kernels(best_simd_level());
  const LogitSource source(parse_score_source("gaussian:0.1", "scores"), experts, 1, 0, 0);
  std::vector<std::vector<float>> logits;
  std::vector<RankLogits> group;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    logits.push_back(source.rank_logits(rank, tokens, kernels));
    group.push_back({logits.back(), tokens});
  }
  GroupRouter routing(parse_router(name, 0, 2), experts, ranks);
  for (auto _ : state) benchmark::DoNotOptimize(routing.route(group).slot.data());
  state.SetItemsProcessed(state.iterations() * tokens * ranks);
  state.SetLabel(name_of(best_simd_level()));
}

void draw(benchmark::State& state) {
  const int experts = static_cast<int>(state.range(0));
  const auto level = static_cast<SimdLevel>(state.range(1));
  if (skip_missing(state, level)) return;
  const LogitSource source(parse_score_source(state.range(2) != 0 ? "zipf:1" : "gaussian:0.1", "s"),
                           experts, 1, 0, 0);
  const TileKernels& kernels = tile_kernels(level);
  std::vector<float> tile(static_cast<std::size_t>(experts) * tile_tokens);
  std::uint64_t token = 0;
  for (auto _ : state) {
    source.fill_tile(0, token, kernels, tile.data());
    benchmark::DoNotOptimize(tile.data());
    token += tile_tokens;
  }
  state.SetItemsProcessed(state.iterations() * tile_tokens * experts);
  state.SetLabel(name_of(level));
}

void simulate(benchmark::State& state) {
  const char* const routers[] = {"top1", "top1+ir", "top1+fr+ir", "top2", "top2+ir", "top2+fr+ir"};
  std::vector<RoutingJob> jobs;
  for (int index = 0; index < state.range(0); ++index) {
    RoutingJob job;
    job.router = parse_router(routers[index % 6], 0);
    job.router.capacity_factor = Decimal::parse(std::to_string(1 + index / 6) + ".25", "factor");
    job.scores = parse_score_source("gaussian:0.1", "scores");
    job.experts = 8;
    job.gpus = 32;
    job.expert_parallel = 8;
    job.gpus_per_domain = 8;
    job.tokens_per_gpu = 16384;
    job.layers = 1;
    jobs.push_back(job);
  }
  int replica = 0;
  for (auto _ : state) benchmark::DoNotOptimize(simulate_routing(jobs, replica++).data());
  state.SetItemsProcessed(state.iterations() * 32 * 16384 * state.range(0));
  state.SetLabel("items are tokens times jobs");
}

BENCHMARK(route)
    ->ArgNames({"experts", "tokens", "level"})
    ->ArgsProduct({{64, 8}, {4096, 16384}, {all_levels[0], all_levels[1], all_levels[2]}});
BENCHMARK_CAPTURE(router, top2, "top2");
BENCHMARK_CAPTURE(router, top2_fr_ir, "top2+fr+ir");
BENCHMARK_CAPTURE(router, dropless, "dropless");
BENCHMARK_CAPTURE(router, expert_choice, "expert-choice");
BENCHMARK_CAPTURE(router, group_limited, "group-limited:8:4");
BENCHMARK_CAPTURE(router, random, "random");
BENCHMARK_CAPTURE(router, hash, "hash:1");
BENCHMARK_CAPTURE(router, scomoe, "scomoe:0.25:0.25");
BENCHMARK_CAPTURE(router, gating_dropout, "gating-dropout:0.3");
BENCHMARK_CAPTURE(router, bias_balanced, "bias-balanced");
BENCHMARK_CAPTURE(router, sigmoid_groups, "bias-balanced:0.001:0+groups:8:4");
BENCHMARK_CAPTURE(router, base, "base")->Unit(benchmark::kMillisecond);
BENCHMARK(draw)
    ->ArgNames({"experts", "level", "gumbel"})
    ->ArgsProduct({{64, 8}, {0, 1, 2}, {0, 1}});
BENCHMARK(simulate)->ArgName("jobs")->Arg(1)->Arg(6)->Arg(36)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
