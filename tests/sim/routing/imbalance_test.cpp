#include "sim/routing/simulation/imbalance.hpp"

#include <cmath>

#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

TEST_CASE("imbalance of small loads, by hand") {
  // Mean 4; deviations -3, -1, 0, 4: squares 26, a quarter of them 6.5. Gini: pairs differ by
  // 2, 3, 7, 1, 5, 4, 22 in all; over n^2 times the mean, counting each pair twice over 2: 22 / 64.
  const std::vector<std::int64_t> loads{1, 8, 3, 4};
  const Imbalance uneven = imbalance(loads);
  CHECK(uneven.mean == 4);
  CHECK(uneven.busiest_over_mean == 2);
  CHECK(uneven.gini == Approx(22.0 / 64).epsilon(1e-12));
  CHECK(uneven.spread == Approx(std::sqrt(6.5) / 4).epsilon(1e-12));

  const Imbalance alone = imbalance(std::vector<std::int64_t>{0, 0, 0, 5});
  CHECK(alone.busiest_over_mean == 4);
  CHECK(alone.gini == Approx(0.75).epsilon(1e-12));

  for (const std::vector<std::int64_t>& even :
       {std::vector<std::int64_t>{7, 7, 7}, std::vector<std::int64_t>{0, 0},
        std::vector<std::int64_t>{}}) {
    CHECK(imbalance(even).busiest_over_mean == 1);
    CHECK(imbalance(even).gini == Approx(0).margin(1e-12));
    CHECK(imbalance(even).spread == 0);
  }
}

TEST_CASE("rows of GPUs and of pairs follow from the rows kept") {
  // Two groups of two GPUs, four experts: 0 and 1 on a group's first GPU, 2 and 3 on its second.
  RoutingJob job;
  job.experts = 4;
  job.gpus = 4;
  job.expert_parallel = 2;
  LayerRouting layer;
  layer.kept_rows = {1, 2,  4, 8,   // GPU 0 of group 0
                     3, 0,  0, 5,   // GPU 1
                     0, 0,  0, 0,   // GPU 2, of group 1
                     9, 10, 0, 1};  // GPU 3
  layer.ir_rows = {0, 100, 0, 1000};
  layer.demand = {13, 12, 4, 14};
  // GPU 0: 1 + 2 of its own, 3 + 0 of GPU 1. GPU 1: 4 + 8, 0 + 5, 100 by IR.
  CHECK(computed_rows(job, layer) == std::vector<std::int64_t>{6, 117, 19, 1001});
  CHECK(pair_rows(job, layer) == std::vector<std::int64_t>{12, 3, 0, 19});
  const LayerImbalance load = layer_imbalance(job, layer);
  CHECK(load.experts.busiest_over_mean == Approx(14 / 10.75));
  CHECK(load.ir.busiest_over_mean == Approx(1000 / 275.0));
  CHECK(load.pairs.mean == 8.5);
  CHECK(load.gpus.busiest_over_mean == Approx(1001 / 285.75));
  CHECK(load.pair_tokens.mean == 0);  // not counted
}

TEST_CASE("distinct tokens of pairs and of nodes leave a GPU's own out") {
  // One group of three GPUs with one expert each, nodes of two: GPUs 0 and 1, and GPU 2.
  RoutingJob job;
  job.experts = 3;
  job.gpus = 3;
  job.expert_parallel = 3;
  job.gpus_per_domain = 2;
  LayerRouting layer;
  layer.kept_rows = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  layer.copies.to_gpu = {10, 11, 12, 20, 21, 22, 30, 31, 32};
  layer.copies.to_node = {1, 2, 3, 4, 5, 6};
  CHECK(pair_tokens(job, layer) == std::vector<std::int64_t>{11, 12, 20, 22, 30, 31});
  const NodeTraffic loads = node_traffic(job, layer);
  CHECK(loads.rows == std::vector<std::int64_t>{4, 32, 64 + 128});
  CHECK(loads.tokens == std::vector<std::int64_t>{2, 4, 5});
}
