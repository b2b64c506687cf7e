#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/routing_cache.hpp"

#include <cmath>
#include <numeric>
#include <thread>

#include "sim/base/error.hpp"
#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/simulation/mean_loss.hpp"
#include "tests/sim/routing/same_routing.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

RoutingJob make(const std::string& router, const std::string& factor,
                const std::string& scores = "gaussian:0.1") {
  RoutingJob job;
  job.router = parse_router(router, 0);
  job.router.capacity_factor = Decimal::parse(factor, "factor");
  job.scores = parse_score_source(scores, "--routing");
  job.experts = 8;
  job.gpus = 16;
  job.expert_parallel = 8;
  job.gpus_per_domain = 4;
  job.tokens_per_gpu = 203;
  job.layers = 3;
  job.seed = 42;
  return job;
}

std::vector<RoutingJob> mixed_jobs() {
  std::vector<RoutingJob> jobs;
  for (const char* router : {"top1", "top2+fr", "top1+ir", "top2+fr+ir@node", "top3+ir"}) {
    for (const char* factor : {"0.5", "1.25", "4"}) jobs.push_back(make(router, factor));
  }
  jobs.push_back(make("top2+ir", "1"));
  jobs.back().router.ir_duplicates = IrDuplicates::exclude;
  jobs.push_back(make("top2+fr", "1"));
  jobs.back().router.capacity_scope = CapacityScope::group;
  for (const auto priority : {Priority::own_score, Priority::position, Priority::random}) {
    jobs.push_back(make("top2+fr", "1.5"));
    jobs.back().router.priority = priority;
    jobs.push_back(jobs.back());
    jobs.back().router.fill_order = FillOrder::priority;
  }
  return jobs;
}

}  // namespace

TEST_CASE("a simulated layer is the reference router on the same logits, group by group") {
  for (const RoutingJob& job : mixed_jobs()) {
    INFO(job.key());
    const int replica = 3;
    const ReplicaRouting routed = simulate_routing(job, replica);
    REQUIRE(routed.layers.size() == 3);
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      const LogitSource source(job.scores, job.experts, job.seed, replica, layer);
      LossSums sums;
      std::vector<std::int32_t> kept_rows, ir_rows;
      std::vector<std::int64_t> demand(8, 0);
      for (int group = 0; group < 2; ++group) {
        std::vector<std::vector<float>> logits;
        std::vector<RankLogits> ranks;
        for (int rank = 0; rank < 8; ++rank) {
          logits.push_back(source.rank_logits(static_cast<std::uint32_t>(group * 8 + rank),
                                              job.tokens_per_gpu,
                                              tile_kernels(SimdLevel::baseline)));
        }
        for (const auto& rows : logits) ranks.push_back({rows, job.tokens_per_gpu});
        RouterContext context;
        context.place = {group * 8, 4};
        context.seed = job.seed;
        context.replica = replica;
        context.layer = layer;
        const RoutedGroup reference = route_group(job.router, job.experts, ranks, context);
        sums += reference.sums;
        kept_rows.insert(kept_rows.end(), reference.kept_rows.begin(), reference.kept_rows.end());
        ir_rows.insert(ir_rows.end(), reference.ir_rows.begin(), reference.ir_rows.end());
        for (std::size_t at = 0; at < static_cast<std::size_t>(job.router.top_k); ++at) {
          const std::uint16_t* choice = reference.expert.data() + at * reference.stride;
          for (std::size_t token = 0; token < reference.tokens; ++token) ++demand[choice[token]];
        }
        CHECK(reference.exchanged_capacity == routed.layers[layer].block_of(group));
      }
      CHECK(routed.layers[layer].kept_rows == kept_rows);
      CHECK(routed.layers[layer].ir_rows == ir_rows);
      CHECK(routed.layers[layer].demand == demand);
      check_same(routed.layers[layer].loss, sums.loss(job.router));
    }
    check_same(routed.loss, mean_loss(routed.layers));
  }
}

TEST_CASE("jobs routed together give what each gives alone") {
  const std::vector<RoutingJob> jobs = mixed_jobs();
  const std::vector<ReplicaRouting> together = simulate_routing(jobs, 1);
  REQUIRE(together.size() == jobs.size());
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    INFO(jobs[job].key());
    check_same(together[job], simulate_routing(jobs[job], 1));
  }
  std::vector<RoutingJob> strangers = {jobs[0], jobs[0]};
  strangers[1].seed = 2;
  CHECK_THROWS_AS(simulate_routing(strangers, 0), UsageError);
}

TEST_CASE("every seed, replica and layer has its own logits") {
  const RoutingJob job = make("top1", "1");
  const ReplicaRouting one = simulate_routing(job, 0);
  CHECK(one.layers[0].kept_rows != one.layers[1].kept_rows);
  CHECK(one.layers[0].kept_rows != simulate_routing(job, 1).layers[0].kept_rows);
  RoutingJob other = job;
  other.seed = 43;
  CHECK(one.layers[0].kept_rows != simulate_routing(other, 0).layers[0].kept_rows);
  // GPUs too: eight of them do not keep the same rows.
  const auto& rows = one.layers[0].kept_rows;
  CHECK(std::vector<std::int32_t>(rows.begin(), rows.begin() + 8) !=
        std::vector<std::int32_t>(rows.begin() + 8, rows.begin() + 16));
  // More layers do not change those there are.
  other = job;
  other.layers = 5;
  CHECK(one.layers[2].kept_rows == simulate_routing(other, 0).layers[2].kept_rows);
}

TEST_CASE("the cache returns what routing returns, from any number of threads") {
  const std::vector<RoutingJob> jobs = mixed_jobs();
  std::vector<ReplicaRouting> expected;
  for (const RoutingJob& job : jobs) {
    for (int replica = 0; replica < 2; ++replica)
      expected.push_back(simulate_routing(job, replica));
  }
  for (const std::size_t max_bytes : {std::size_t{1}, std::size_t{20000}, std::size_t{1} << 28}) {
    RoutingCache cache(max_bytes);
    cache.announce(jobs, 2);
    std::vector<std::shared_ptr<const ReplicaRouting>> results(expected.size());
    std::vector<std::thread> threads;
    for (std::size_t worker = 0; worker < 4; ++worker) {
      threads.emplace_back([&, worker] {
        for (std::size_t at = worker; at < results.size(); at += 4) {
          results[at] = cache.get(jobs[at / 2], static_cast<int>(at % 2));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t at = 0; at < results.size(); ++at) check_same(*results[at], expected[at]);
  }
}

TEST_CASE("the cache keeps results and forgets the least recently used") {
  RoutingCache cache;
  const RoutingJob job = make("top1", "1");
  const auto first = cache.get(job, 0);
  CHECK(cache.get(job, 0) == first);
  CHECK(cache.get(job, 1) != first);
  RoutingJob same = job;  // weights and the way IR is computed do not change the routing
  same.router.weights = Weights::raw;
  same.router.ir_compute = IrCompute::overlap;
  CHECK(cache.get(same, 0) == first);
  RoutingCache small(1);  // room for the newest only
  const auto one = small.get(job, 0);
  small.get(job, 1);
  CHECK(small.get(job, 0) != one);
  check_same(*small.get(job, 0), *one);
}

TEST_CASE("announced jobs are routed with the first of them that is asked for") {
  RoutingCache cache;
  std::vector<RoutingJob> jobs = {make("top1", "1"), make("top2", "1"), make("dense", "1")};
  cache.announce(jobs, 1);  // the dense one cannot be routed and is passed over
  check_same(*cache.get(jobs[0], 0), simulate_routing(jobs[0], 0));
  check_same(*cache.get(jobs[1], 0), simulate_routing(jobs[1], 0));
  CHECK_THROWS_AS(cache.get(jobs[2], 0), UsageError);
}

// Experts that choose their tokens draw the logits by themselves, so that a pass of fewer jobs
// costs nothing: with any limit the first one has few of the 40.
TEST_CASE("with a limit the first jobs are routed before the last ones") {
  std::vector<RoutingJob> jobs;
  for (int at = 0; at < 40; ++at) {
    jobs.push_back(make("top1", std::to_string(at / 10 + 1) + "." + std::to_string(at % 10)));
    const Decimal factor = jobs.back().router.capacity_factor;
    jobs.back().router = parse_router("expert-choice", 2);
    jobs.back().router.capacity_factor = factor;
  }
  constexpr int replicas = 22;  // of 3 layers: 66, enough to measure one first
  for (const double seconds : {0.0, 1e-9}) {
    const bool limited = seconds > 0;
    RoutingCache cache;
    cache.announce(jobs, replicas, {seconds, 1});
    CHECK_FALSE(cache.seconds_left().has_value());
    for (int replica = 0; replica < replicas; ++replica) {
      check_same(*cache.get(jobs[0], replica), simulate_routing(jobs[0], replica));
    }
    REQUIRE(cache.seconds_left().has_value());
    CHECK((*cache.seconds_left() > 0) == limited);
    CHECK(cache.seconds_spent() > 0);
    for (std::size_t job = 1; job < jobs.size(); ++job) {
      for (int replica = 0; replica < replicas; ++replica) cache.get(jobs[job], replica);
    }
    CHECK(cache.seconds_left() == 0.0);
    check_same(*cache.get(jobs[39], 1), simulate_routing(jobs[39], 1));
  }
}

// A thread may ask for the second job of a pass before another asks for the first.
TEST_CASE("a pass has all its jobs, whichever of them is asked for first") {
  const std::vector<RoutingJob> jobs = {make("top1", "1"), make("top1", "1.5"), make("top2", "1")};
  RoutingCache cache;
  int layers = 0;
  cache.on_layer([&] { ++layers; });
  cache.announce(jobs, 1);
  for (const std::size_t job : {1U, 0U, 2U}) {
    check_same(*cache.get(jobs[job], 0), simulate_routing(jobs[job], 0));
  }
  CHECK(layers == 3);
}

// Of a row that failed before it asked for its routing.
TEST_CASE("announced jobs that are forgotten are not routed with others, and are not left") {
  const std::vector<RoutingJob> jobs = {make("top1", "1"), make("top1", "1.5"), make("top2", "1")};
  RoutingCache cache;
  int layers = 0;
  cache.on_layer([&] { ++layers; });
  cache.announce(jobs, 1);
  cache.forget({&jobs[1], 1});
  cache.get(jobs[0], 0);
  CHECK(layers == 3);
  CHECK(cache.seconds_left() == 0.0);
  check_same(*cache.get(jobs[1], 0), simulate_routing(jobs[1], 0));  // by itself
  CHECK(layers == 6);
  cache.get(jobs[2], 0);  // it was routed with the first
  CHECK(layers == 6);
  CHECK(cache.seconds_left() == 0.0);
}

TEST_CASE("jobs that several announced are forgotten when all of them forget them") {
  const std::vector<RoutingJob> jobs = {make("top1", "1"), make("top1", "1.5")};
  RoutingCache cache;
  cache.announce(jobs, 1);
  cache.announce(jobs, 1);
  cache.forget(jobs);
  cache.forget({&jobs[0], 1});
  cache.get(jobs[0], 0);
  CHECK(*cache.seconds_left() > 0);  // the second job
  cache.forget({&jobs[1], 1});
  CHECK(cache.seconds_left() == 0.0);
  // With no job left, the cache is as one that was told of none.
  RoutingCache other;
  other.announce(jobs, 1);
  CHECK_FALSE(other.seconds_left().has_value());
  other.forget(jobs);
  CHECK(other.seconds_left() == 0.0);
  other.forget(jobs);
  other.announce(jobs, 1);
  check_same(*other.get(jobs[1], 0), simulate_routing(jobs[1], 0));
  CHECK(other.seconds_left() == 0.0);
}

TEST_CASE("replicas and limits that cannot be are refused by their names") {
  const RoutingJob job = make("top1", "1");
  RoutingCache cache;
  CHECK_THROWS_WITH(cache.get(job, -1), ContainsSubstring("replica -1: out of range: from 0"));
  CHECK_THROWS_WITH(cache.announce({&job, 1}, 0), ContainsSubstring("replicas 0"));
  CHECK_THROWS_WITH(cache.announce({&job, 1}, 1, {-1, 1}), ContainsSubstring("seconds -1"));
  CHECK_THROWS_WITH(cache.announce({&job, 1}, 1, {std::nan(""), 1}), ContainsSubstring("nan"));
  CHECK_THROWS_WITH(cache.announce({&job, 1}, 1, {0, 0}), ContainsSubstring("threads 0"));
}

TEST_CASE("a stop while a job is measured leaves the cache as it was") {
  const std::vector<RoutingJob> jobs = {make("top1", "1"), make("top1", "1.5")};
  RoutingCache cache;
  cache.announce(jobs, 64, {1e-9, 1});
  struct Stopped {};
  cache.on_layer([] { throw Stopped(); });
  CHECK_THROWS_AS(cache.get(jobs[0], 0), Stopped);
  CHECK_THROWS_AS(cache.get(jobs[1], 0), Stopped);
  cache.on_layer(nullptr);
  check_same(*cache.get(jobs[0], 0), simulate_routing(jobs[0], 0));
}

TEST_CASE("jobs that cannot be are refused with the flag to change") {
  const auto refused = [](auto change, const std::string& part) {
    RoutingJob job = make("top2", "2");
    change(job);
    CHECK_THROWS_WITH(check(job), ContainsSubstring(part));
  };
  CHECK_NOTHROW(check(make("top2", "2")));
  refused([](RoutingJob& job) { job.gpus = 0; }, "--gpus");
  refused([](RoutingJob& job) { job.expert_parallel = 3; }, "--expert-parallel");
  refused([](RoutingJob& job) { job.expert_parallel = 32; }, "--expert-parallel");
  refused([](RoutingJob& job) { job.experts = 12; },
          "--expert-parallel: 12 experts cannot be spread evenly over 8 GPUs");
  refused([](RoutingJob& job) { job.tokens_per_gpu = 0; }, "--tokens-per-gpu");
  refused([](RoutingJob& job) { job.tokens_per_gpu = std::int64_t{1} << 40; }, "--expert-parallel");
  refused([](RoutingJob& job) { job.layers = 0; }, "layers");
  refused([](RoutingJob& job) { job.router = parse_router("top8+fr", 0); }, "--top-k");
  refused([](RoutingJob& job) { job.router = parse_router("dense", 0); }, "--router");
}

TEST_CASE("loss figures of rectifications that are off are absent") {
  const TokenLoss plain = simulate_routing(make("top1", "1"), 0).loss;
  CHECK_FALSE(plain.fill_failed.has_value());
  CHECK_FALSE(plain.failed_attempted.has_value());
  CHECK_FALSE(plain.duplicate_ir.has_value());
  const TokenLoss all = simulate_routing(make("top1+fr+ir", "1"), 0).loss;
  CHECK(all.fill_failed.has_value());
  CHECK(all.failed_attempted.has_value());
  CHECK(all.duplicate_ir.has_value());
  CHECK(all.unrouted == 0);
}
