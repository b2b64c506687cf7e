#include "sim/routing/counts/count_router.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/layer_router.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/count_distance.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

RoutingJob make(const std::string& router, const std::string& factor,
                const std::string& scores = "gaussian:0.1") {
  RoutingJob job;
  job.router = parse_router(router, 0, 2);
  job.router.capacity_factor = Decimal::parse(factor, "factor");
  job.scores = parse_score_source(scores, "--routing");
  job.experts = 16;
  job.gpus = 24;
  job.expert_parallel = 8;
  job.gpus_per_domain = 8;
  job.tokens_per_gpu = 1024;
  job.layers = 2;
  job.fidelity = Fidelity::counts;
  return job;
}

std::int64_t sum(const std::vector<std::int32_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

}  // namespace

TEST_CASE("counts are as far from tokens as the bars allow", "[slow]") {
  // A part of bench_counts' grid. Token and count level meet the same popularities, so what is left
  // is what the approximation makes, and sampling: four standard errors of the mean of the paired
  // differences are allowed on top of the bar.
  for (const DistanceShape& shape : quick_shapes()) {
    for (const Distance& distance : count_distances(shape, distance_routers(shape.experts))) {
      for (const Distance::Metric& metric : distance.metrics) {
        INFO(shape.name() << ", " << distance.router << ": " << metric.name << " of "
                          << metric.tokens << " is off by " << metric.off << " +- "
                          << metric.error);
        CHECK(std::abs(metric.off) <= metric.bar + 4 * metric.error);
      }
    }
  }
}

TEST_CASE("by position in a group, each layer's rectified tokens are those of the last ranks",
          "[routing]") {
  // The last ranks' tokens fail, and go to the experts of those very ranks: what they lose depends
  // on which these are, layer by layer (3 points where a pilot's tokens do not know their rank).
  // Shares near 0.3 of the pilot's 16,384 tokens and of 16 * 2,048 have a standard error of 0.44
  // points together; four of them are allowed.
  RoutingJob job = make("top1+ir", "1", "gaussian:1");
  job.router.priority = Priority::position;
  job.router.capacity_scope = CapacityScope::group;
  job.experts = 8;
  job.gpus = 16;
  job.tokens_per_gpu = 2048;
  CountRouter counts;
  LayerRouter tokens;
  std::vector<LayerRouting> fast(1), exact(1);
  for (int layer = 0; layer < 8; ++layer) {
    counts.route({&job, 1}, 0, layer, fast);
    RoutingJob same = job;
    same.fidelity = Fidelity::tokens;
    tokens.route({&same, 1}, 0, layer, exact);
    CHECK(fast[0].loss.residual_loss == Approx(exact[0].loss.residual_loss).margin(0.0176));
  }
}

TEST_CASE("what counts decide is exact", "[routing]") {
  for (const char* scope : {"source", "group"}) {
    for (const char* router : {"top2", "top2+fr", "top1+fr+ir"}) {
      RoutingJob job = make(router, "1.5", "zipf:0.7");
      job.router.capacity_scope = parse_capacity_scope(scope, "scope");
      CountRouter counts;
      std::vector<LayerRouting> layer(1);
      counts.route({&job, 1}, 0, 0, layer);
      const LayerRouting& result = layer.front();
      const std::int64_t routes = 24 * 1024 * job.router.top_k;
      const auto kept = static_cast<double>(sum(result.kept_rows));
      const double slots = static_cast<double>(result.capacity) * 24 * 16;
      CHECK(std::accumulate(result.demand.begin(), result.demand.end(), std::int64_t{0}) == routes);
      CHECK(result.loss.padded == Approx(1 - kept / slots));
      const double filled = job.router.fill_in ? (1 - *result.loss.fill_failed) * 24 * 1024 : 0.0;
      CHECK(kept == Approx(static_cast<double>(routes) * (1 - result.loss.failed) + filled));
      const std::ptrdiff_t cells = std::ptrdiff_t{job.expert_parallel} * 16;
      for (int group = 0; group < job.gpus / job.expert_parallel; ++group) {
        const auto first = result.kept_rows.begin() + group * cells;
        const std::int64_t largest = *std::max_element(first, first + cells);
        const bool padded_to_it = job.router.capacity_scope == CapacityScope::group;
        CHECK(result.block_of(group) == (padded_to_it ? largest : result.capacity));
      }
      // A token that lost all its one choice lost it in every sense.
      if (job.router.top_k == 1) CHECK(result.loss.partial == Approx(result.loss.failed));
    }
  }
}

TEST_CASE("given counts are routed as they are", "[routing]") {
  RoutingJob job = make("top2", "1.25");
  // Every GPU sends 2 S = 2048 routes: 600 to the first expert, 368 to the second, 1080 in equal
  // parts of 90 to the next twelve. C = ceil(1.25 * 1024 / 16) = 80 fails 520 + 288 + 12 * 10.
  std::vector<std::int32_t> primary;
  for (int gpu = 0; gpu < job.gpus; ++gpu) {
    for (int expert = 0; expert < 16; ++expert) {
      primary.push_back(expert == 0 ? 600 : expert == 1 ? 368 : expert < 14 ? 90 : 0);
    }
  }
  CountRouter counts;
  std::vector<LayerRouting> layer(1);
  counts.route_counts({&job, 1}, 0, 0, primary, layer);
  CHECK(layer[0].loss.failed == Approx((520 + 288 + 120) / 2048.0));
  for (std::size_t at = 0; at < primary.size(); ++at) {
    REQUIRE(layer[0].kept_rows[at] == std::min(primary[at], 80));
  }
}

TEST_CASE("routing without drops keeps all counts", "[routing]") {
  RoutingJob job = make("dropless", "2", "zipf:1");
  CountRouter counts;
  std::vector<LayerRouting> layer(1);
  counts.route({&job, 1}, 0, 0, layer);
  CHECK(sum(layer[0].kept_rows) == 24 * 1024 * 2);
  CHECK(layer[0].loss.failed == 0);
  CHECK(layer[0].loss.residual_loss == 0);
  CHECK(layer[0].capacity == 0);
}

TEST_CASE("counts of a balanced permutation are those of its tokens", "[routing]") {
  for (const char* scope : {"source", "group"}) {
    RoutingJob job = make("random:balanced", "0.7");
    job.router.capacity_scope = parse_capacity_scope(scope, "scope");
    job.tokens_per_gpu = 1000;  // 62 or 63 of each expert, C = ceil(0.7 * 1000 / 16) = 44
    CountRouter counts;
    LayerRouter tokens;
    std::vector<LayerRouting> fast(1), exact(1);
    counts.route({&job, 1}, 3, 1, fast);
    job.fidelity = Fidelity::tokens;
    tokens.route({&job, 1}, 3, 1, exact);
    CHECK(fast[0].demand == exact[0].demand);
    CHECK(fast[0].kept_rows == exact[0].kept_rows);
    CHECK(fast[0].exchanged_capacity == exact[0].exchanged_capacity);
    CHECK(fast[0].loss.failed == Approx(1 - 44 * 16 / 1000.0));
    CHECK(fast[0].loss.failed == Approx(exact[0].loss.failed));
    CHECK(fast[0].loss.padded == Approx(exact[0].loss.padded));
    CHECK(fast[0].loss.residual_loss == Approx(exact[0].loss.residual_loss));
  }
}

TEST_CASE("counts of random routes lose the floor that chance sets", "[routing]") {
  // X ~ Binomial(n = 4096, p = 1 / 64) tokens meet C = n p = 64 slots. De Moivre: the mean of what
  // is over, max(0, X - n p), is m (1 - p) P(X = m) with m = 65; of 64 that is 4.95 %, the floor of
  // 0.399 sqrt(63 / 4096). The 16,384 draws, each of standard deviation about 4.6 of 64 tokens,
  // leave an error of 5.7e-4.
  RoutingJob job = make("random", "1");
  job.experts = 64;
  job.gpus = 64;
  job.layers = 4;
  job.tokens_per_gpu = 4096;
  const ReplicaRouting counts = simulate_routing(job, 0);
  const double probability =
      std::exp(std::lgamma(4097.0) - std::lgamma(66.0) - std::lgamma(4032.0) - 65 * std::log(64.0) +
               4031 * std::log1p(-1 / 64.0));
  const double over = 65 * (63 / 64.0) * probability / 64;
  CHECK(over == Approx(0.0495).margin(1e-4));
  CHECK(counts.loss.failed == Approx(over).margin(3 * 5.7e-4));
  CHECK(counts.loss.failed == Approx(counts.loss.padded));
}

TEST_CASE("hashed counts are those of hashed tokens", "[routing]") {
  // A token keeps its id from layer to layer, so that losses of layers move together: a count that
  // was drawn for each layer anew would spread their mean too little.
  const auto [router, tokens] = GENERATE(table<const char*, std::int64_t>(
      {{"hash:1", 1024}, {"hash:0", 1024}, {"hash:10", 1024}, {"hash:1.2", 300000}}));
  CAPTURE(router, tokens);
  RoutingJob job = make(router, "1");
  job.tokens_per_gpu = tokens;
  job.gpus = tokens > 1024 ? 2 : job.gpus;
  job.expert_parallel = std::min(job.expert_parallel, job.gpus);
  RoutingJob same = job;
  same.fidelity = Fidelity::tokens;
  std::vector<LayerRouting> fast(1), exact(1);
  CountRouter counts;  // one: keeps ids from layer to layer, not from replica to replica
  LayerRouter by_token;
  for (const auto& [replica, layer] : {std::pair{0, 0}, {0, 1}, {3, 1}, {0, 0}}) {
    counts.route({&job, 1}, replica, layer, fast);
    by_token.route({&same, 1}, replica, layer, exact);
    CHECK(fast[0].demand == exact[0].demand);
    CHECK(fast[0].kept_rows == exact[0].kept_rows);
    CHECK(fast[0].loss.residual_loss == Approx(exact[0].loss.residual_loss).epsilon(1e-12));
  }
}

TEST_CASE("count-level results depend on the job alone", "[routing]") {
  std::vector<RoutingJob> jobs;
  for (const char* router : {"top1", "top2+fr", "top3+ir", "top2+fr+ir@node", "dropless", "random",
                             "random:balanced", "hash:1", "hash:0.5"}) {
    jobs.push_back(make(router, "1.25", "dirichlet:0.5"));
  }
  const std::vector<ReplicaRouting> together = simulate_routing(jobs, 3);
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    const ReplicaRouting alone = simulate_routing(jobs[job], 3);
    for (std::size_t layer = 0; layer < alone.layers.size(); ++layer) {
      CHECK(alone.layers[layer].kept_rows == together[job].layers[layer].kept_rows);
      CHECK(alone.layers[layer].ir_rows == together[job].layers[layer].ir_rows);
    }
    CHECK(alone.loss.partial == together[job].loss.partial);
    CHECK(alone.loss.residual_loss == together[job].loss.residual_loss);
    CHECK(alone.loss.unrouted == together[job].loss.unrouted);
  }
  CHECK(together[0].layers[0].kept_rows != together[0].layers[1].kept_rows);
}

TEST_CASE("every instruction set gives the same counts", "[routing]") {
  const RoutingJob job = make("top2+fr+ir", "1.25");
  std::vector<LayerRouting> first(1);
  CountRouter(SimdLevel::baseline).route({&job, 1}, 0, 0, first);
  for (const SimdLevel level : available_simd_levels()) {
    std::vector<LayerRouting> other(1);
    CountRouter(level).route({&job, 1}, 0, 0, other);
    CHECK(other[0].kept_rows == first[0].kept_rows);
    CHECK(other[0].ir_rows == first[0].ir_rows);
    CHECK(other[0].loss.residual_loss == first[0].loss.residual_loss);
  }
}

TEST_CASE("counts are refused with a reason where tokens are needed", "[routing]") {
  RoutingJob few = make("top2", "2");
  few.tokens_per_gpu = 100;
  CHECK_THROWS_WITH(check(few), ContainsSubstring("100 tokens per GPU are too few"));
  RoutingJob across = make("top2+ir@node", "2");
  across.gpus_per_domain = 3;
  CHECK_THROWS_WITH(check(across), ContainsSubstring("NVLink domains of 3"));
  across.gpus_per_domain = 36;  // has all 24 GPUs
  CHECK_NOTHROW(check(across));
  CHECK_THROWS_WITH(check(make("soft", "2")), ContainsSubstring("not for soft"));
  CHECK_THROWS_WITH(check(make("base", "2")), ContainsSubstring("not for base"));
  CHECK_THAT(counts_refusal(make("random", "2", "ragged-source:2")),
             ContainsSubstring("different numbers of tokens"));
  few.router = parse_router("hash:1", 0);  // no pilot whose tokens would be too large a part
  CHECK_NOTHROW(check(few));
  CHECK_THROWS_AS(parse_fidelity("coins", "--fidelity"), UsageError);

  RoutingJob job = make("top2", "2");
  CHECK(choose_fidelity(Fidelity::automatic, job) == Fidelity::tokens);
  job.gpus = 65536;  // 65,536 GPUs * 1,024 tokens * 16 experts * 2 layers = 2.1e9 logits
  CHECK(choose_fidelity(Fidelity::automatic, job) == Fidelity::counts);
  job.tokens_per_gpu = 255;
  job.layers = 65535;
  CHECK(choose_fidelity(Fidelity::automatic, job) == Fidelity::tokens);
}

TEST_CASE("counts are refused where a token's only local expert may have it", "[routing]") {
  RoutingJob job = make("top2+ir", "1");
  job.router.ir_duplicates = IrDuplicates::exclude;
  CHECK(counts_refusal(job).empty());  // 16 experts on 8 GPUs
  job.experts = 8;
  CHECK_THROWS_WITH(check(job), ContainsSubstring("exclude and one expert per GPU"));
  job.layers = 65535;
  job.gpus = 65536;
  CHECK(choose_fidelity(Fidelity::automatic, job) == Fidelity::tokens);
  // A token of one choice that is rectified has no expert at all.
  job.router = parse_router("top1+ir", 0, 1);
  job.router.ir_duplicates = IrDuplicates::exclude;
  CHECK(counts_refusal(job).empty());
  // A node's GPUs have 8 experts between them, one GPU as its own node has one.
  job.router = parse_router("top2+ir@node", 0, 2);
  job.router.ir_duplicates = IrDuplicates::exclude;
  CHECK(counts_refusal(job).empty());
  job.gpus_per_domain = 1;
  CHECK_FALSE(counts_refusal(job).empty());
}

TEST_CASE("counts go on where tokens are too many to route each", "[routing]") {
  RoutingJob job = make("top2", "1", "zipf:0.7");
  job.gpus = 8;
  job.tokens_per_gpu = 100'000'000;
  job.layers = 1;
  job.fidelity = Fidelity::tokens;
  // (2^31 - 1) / 63 choices / 8 ranks = 4260880.2
  CHECK_THROWS_WITH(check(job), ContainsSubstring("at token level: at most 4260880 with") &&
                                    ContainsSubstring("--fidelity counts takes more"));
  job.fidelity = choose_fidelity(Fidelity::automatic, job);
  REQUIRE(job.fidelity == Fidelity::counts);
  RoutingJob small = job;
  small.tokens_per_gpu = 1'000'000;
  const LayerRouting many = simulate_routing(job, 0).layers.front();
  const LayerRouting fewer = simulate_routing(small, 0).layers.front();
  CHECK(std::accumulate(many.demand.begin(), many.demand.end(), std::int64_t{0}) == 1'600'000'000);
  // Both draw from the same shares. An expert's routes of 8e6 tokens deviate by sqrt(8e6 / 4)
  // = 1.4e3 at most, 1e-4 of all 16e6: those of the experts that overflow, by less than ten times
  // that.
  CHECK(many.loss.failed == Approx(fewer.loss.failed).margin(1e-3));
  CHECK(many.loss.failed > 0.1);

  job.experts = 8;  // 5e6 tokens * 8 GPUs * 8 experts are 3.2e8 logits: few, but of too many tokens
  job.tokens_per_gpu = 5'000'000;
  CHECK(choose_fidelity(Fidelity::automatic, job) == Fidelity::counts);
  job.tokens_per_gpu = (std::int64_t{1} << 27) + 1;  // 2^30 / 8 ranks are 2^27
  CHECK_THROWS_WITH(check(job), ContainsSubstring("at count level: at most 134217728 with"));
}

TEST_CASE("counts are refused where all choices of a token stand together") {
  RoutingJob job = make("top2", "1");
  CHECK(counts_refusal(job).empty());
  job.router.priority = Priority::token_order;
  CHECK_THAT(counts_refusal(job), ContainsSubstring("--priority token-order"));
  // Without capacity nothing queues.
  job.router = parse_router("dropless", 0, 2);
  job.router.priority = Priority::token_order;
  CHECK(counts_refusal(job).empty());
}

TEST_CASE("rows are the same without losses", "[routing]") {
  for (const char* scope : {"source", "group"}) {
    for (const char* router : {"top2", "top2+fr", "top2+ir", "dropless"}) {
      RoutingJob job = make(router, "1");
      job.router.capacity_scope = parse_capacity_scope(scope, "scope");
      job.router.drops = router != std::string("dropless");
      RoutingJob fast = job;
      fast.with_losses = false;
      CountRouter counts;
      std::vector<LayerRouting> all(1), rows(1);
      counts.route({&job, 1}, 0, 1, all);
      counts.route({&fast, 1}, 0, 1, rows);
      CHECK(rows[0].kept_rows == all[0].kept_rows);
      CHECK(rows[0].ir_rows == all[0].ir_rows);
      CHECK(rows[0].loss.failed == all[0].loss.failed);
      CHECK(rows[0].loss.padded == all[0].loss.padded);
      CHECK(job.key() != fast.key());
      CHECK(job.logits_key() == fast.logits_key());
      // Rectified rows need the tokens, which tell the losses too.
      const bool has_losses = job.router.rectification != Rectification::none;
      CHECK(rows[0].loss.residual_loss == (has_losses ? all[0].loss.residual_loss : 0));
      CHECK((all[0].loss.residual_loss > 0) == job.router.drops);
    }
  }
}
