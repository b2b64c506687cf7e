#include "sim/routing/jobs/token_copies.hpp"

#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

#include "sim/base/numbers.hpp"
#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/routing/tokens/decision.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

using Counts = std::vector<std::int32_t>;

// Two nodes of two GPUs, two experts each; the experts of each rank's tokens as listed, k = 3.
TokenCopies copies_of(const RouterConfig& config,
                      const std::vector<std::vector<std::uint16_t>>& expert_of_rank) {
  constexpr int experts = 8;
  std::int64_t tokens = 0;
  for (const auto& chosen : expert_of_rank) tokens += static_cast<std::int64_t>(chosen.size()) / 3;
  ChoiceTable table;
  table.reset(experts, 3, 0, 0, tokens);
  std::vector<StreamKey> keys;
  std::vector<std::int64_t> capacity;
  for (const auto& chosen : expert_of_rank) {
    const auto own = static_cast<std::int64_t>(chosen.size()) / 3;
    table.append_choices(chosen, {}, 3, own);
    keys.push_back({});
    capacity.push_back(config.capacity(own, experts));
  }
  RouteOrders orders;
  orders.reset(table, std::move(keys));
  Decision decision;
  decision.decide({config, table, orders, tile_kernels(SimdLevel::baseline), 0, capacity});
  TokenCopies copies;
  count_copies(table, decision, 3, {4, 2}, 2, copies);  // the group is GPUs 4 to 7
  return copies;
}

RoutingJob job_of(const std::string& router, int top_k, const std::string& scores) {
  RoutingJob job;
  job.router = parse_router(router, top_k, 2);
  job.scores = parse_score_source(scores, "--routing");
  job.experts = 16;
  job.gpus = 16;
  job.expert_parallel = 8;
  job.gpus_per_domain = 4;
  job.tokens_per_gpu = 256;
  job.layers = 2;
  job.count_copies = true;
  return job;
}

std::int64_t sum(const std::vector<std::int32_t>& counts, std::size_t first, std::size_t size) {
  const auto begin = counts.begin() + static_cast<std::ptrdiff_t>(first);
  return std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(size), std::int64_t{0});
}

}  // namespace

TEST_CASE("a token counts once for each GPU and each node it goes to") {
  // GPU 0's tokens have experts on GPUs {0, 0, 1}, {2, 2, 3} and {0, 1, 3}; GPU 1's on {3, 3, 2};
  // GPU 2's on {0, 1, 2}; GPU 3's on {3, 3, 0}. Nodes are {0, 1} and {2, 3}.
  const std::vector<std::vector<std::uint16_t>> chosen{
      {0, 1, 2, 4, 5, 6, 1, 3, 7}, {6, 7, 5}, {0, 2, 4}, {6, 7, 0}};
  const TokenCopies copies = copies_of(parse_router("dropless", 3), chosen);
  CHECK(copies.to_gpu == Counts{2, 2, 1, 2,  //
                                0, 0, 1, 1,  //
                                1, 1, 1, 0,  //
                                1, 0, 0, 1});
  CHECK(copies.to_node == Counts{2, 2,  //
                                 0, 1,  //
                                 1, 1,  //
                                 1, 1});
}

TEST_CASE("routes that are dropped take no token along") {
  // One slot an expert, filled choice by choice: token 0 of GPU 0 loses expert 0, its only one on
  // node 0, to the first choice of token 1.
  RouterConfig config = parse_router("top3", 0);
  config.priority = Priority::position;
  config.capacity_factor = Decimal(4);  // ceil(4 * 2 / 8)
  const TokenCopies copies =
      copies_of(config, {{6, 7, 0, 0, 4, 1}, {0, 1, 2}, {2, 3, 4}, {4, 5, 6}});
  CHECK(Counts(copies.to_gpu.begin(), copies.to_gpu.begin() + 4) == Counts{1, 0, 1, 1});
  CHECK(Counts(copies.to_node.begin(), copies.to_node.begin() + 2) == Counts{1, 2});
}

TEST_CASE("copies are those of the reference's kept routes, group by group") {
  for (const auto& [router, k] :
       std::vector<std::pair<const char*, int>>{{"top2+fr", 2},
                                                {"dropless", 5},
                                                {"group-limited:4:2", 3},
                                                {"gating-dropout:0.5+ir", 2}}) {
    CAPTURE(router);
    RoutingJob job = job_of(router, router[0] == 't' ? 0 : k, "gaussian:0.5");
    job.router.capacity_factor = Decimal(1);
    const ReplicaRouting routed = simulate_routing(job, 1);
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      const LogitSource source(job.scores, {job.experts, job.expert_parallel, job.gpus}, job.seed,
                               1, layer);
      Counts to_gpu(16 * 8), to_node(16 * 2);
      for (int group = 0; group < 2; ++group) {
        std::vector<std::vector<float>> logits;
        std::vector<RankLogits> ranks;
        for (int rank = 0; rank < 8; ++rank) {
          logits.push_back(source.rank_logits(static_cast<std::uint32_t>(group * 8 + rank), 256,
                                              tile_kernels(SimdLevel::baseline)));
        }
        for (const auto& rows : logits) ranks.push_back({rows, 256});
        const RouterContext context{{group * 8, 4}, job.seed, 1, layer};
        std::set<std::tuple<int, int, int>> gpus, nodes;  // rank, token, where to
        for (const Route& one : route_group(job.router, 16, ranks, context).routes()) {
          if (one.slot < 0) continue;
          gpus.emplace(one.rank, one.token, one.expert / 2);
          nodes.emplace(one.rank, one.token, one.expert / 8);
        }
        for (const auto& [rank, token, gpu] : gpus)
          ++to_gpu[index_of(group * 8 + rank) * 8 + index_of(gpu)];
        for (const auto& [rank, token, node] : nodes)
          ++to_node[index_of(group * 8 + rank) * 2 + index_of(node)];
      }
      CHECK(routed.layers[layer].copies.to_gpu == to_gpu);
      CHECK(routed.layers[layer].copies.to_node == to_node);
    }
  }
}

TEST_CASE("tokens of group-limited routers reach no more nodes than groups are kept") {
  // Groups of four experts are a GPU pair each: four of them, two to a node of four GPUs.
  RoutingJob job = job_of("group-limited:4:1", 4, "gaussian:0.3");
  for (const LayerRouting& layer : simulate_routing(job, 0).layers) {
    for (std::size_t gpu = 0; gpu < 16; ++gpu) {
      CHECK(sum(layer.copies.to_node, gpu * 2, 2) == 256);  // one group, so one node
      CHECK(sum(layer.copies.to_gpu, gpu * 8, 8) == 512);   // all four experts of two GPUs
    }
  }
  job.router = parse_router("bias-balanced:0.01:3+groups:8:3", 4);
  job.gpus_per_domain = 1;
  for (const LayerRouting& layer : simulate_routing(job, 0).layers) {
    for (std::size_t gpu = 0; gpu < 16; ++gpu) {
      const std::int64_t copies = sum(layer.copies.to_gpu, gpu * 8, 8);
      CHECK(copies >= 2 * 256);  // four experts, two a GPU
      CHECK(copies <= 3 * 256);
    }
    CHECK(layer.copies.to_node == layer.copies.to_gpu);  // a node is a GPU here
  }
}

TEST_CASE("copies in total: closed forms") {
  // One expert a token: a copy is a route. Balanced: S / P to each GPU, S / 2 to each node.
  for (const LayerRouting& layer :
       simulate_routing(job_of("random:balanced", 0, "gaussian:0.1"), 0).layers) {
    CHECK(layer.copies.to_gpu == Counts(16 * 8, 32));
    CHECK(layer.copies.to_node == Counts(16 * 2, 128));
  }
  // k different experts of E, uniformly: none on one GPU of E / P experts with probability
  // C(E - E / P, k) / C(E, k): k = 3 of 16, C(14, 3) / C(16, 3) = 364 / 560, so 0.35 of the tokens
  // go to a GPU; none on a node of 8 with C(8, 3) / 560 = 0.1, so 0.9 go to each.
  std::int64_t gpus = 0, nodes = 0, routes = 0;
  for (const LayerRouting& layer :
       simulate_routing(job_of("dropless", 3, "gaussian:0"), 0).layers) {
    gpus += sum(layer.copies.to_gpu, 0, layer.copies.to_gpu.size());
    nodes += sum(layer.copies.to_node, 0, layer.copies.to_node.size());
    routes += sum(layer.kept_rows, 0, layer.kept_rows.size());
  }
  const double tokens = 2 * 16 * 256;
  CHECK(routes == 3 * 2 * 16 * 256);
  // A token has 2.8 copies on GPUs with a spread below 1/2, and 1.8 on nodes with one of 0.4: four
  // standard errors of 8,192 tokens.
  CHECK(static_cast<double>(gpus) / tokens == Approx(8 * 0.35).margin(0.022));
  CHECK(static_cast<double>(nodes) / tokens == Approx(2 * 0.9).margin(0.018));
}

TEST_CASE("copies are counted where they are asked for and routes are choices of tokens") {
  RoutingJob job = job_of("dropless", 2, "gaussian:0.1");
  CHECK(group_nodes(job) == 2);
  CHECK(node_in_group(job, 11) == 0);
  CHECK(node_in_group(job, 12) == 1);
  job.gpus_per_domain = 6;  // GPUs 0 to 7 lie on nodes 0 and 1, 8 to 15 on 1 and 2
  CHECK(group_nodes(job) == 2);
  CHECK(node_in_group(job, 11) == 0);
  job.count_copies = false;
  const std::string key = job.key();
  CHECK(simulate_routing(job, 0).layers[0].copies.to_gpu.empty());
  job.count_copies = true;
  CHECK(job.key() != key);
  job.router = parse_router("soft", 0);
  CHECK(simulate_routing(job, 0).layers[0].copies.to_gpu.empty());
}
