#include "sim/routing/simulation/kept_choices.hpp"

#include <set>
#include <string>
#include <vector>

#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/routing_cache.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "tests/sim/routing/same_routing.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

constexpr int layers = 3;

RoutingJob make(const std::string& router, int top_k, const std::string& scores,
                int expert_parallel = 8, std::int64_t tokens = 203) {
  RoutingJob job;
  job.router = parse_router(router, top_k);
  job.scores = parse_score_source(scores, "--routing");
  job.experts = 32;
  job.gpus = 16;
  job.expert_parallel = expert_parallel;
  job.gpus_per_domain = 8;
  job.tokens_per_gpu = tokens;
  job.layers = layers;
  job.seed = 42;
  return job;
}

const std::vector<std::string> sources = {
    "gaussian:0.1", "gaussian:2", "zipf:1.2",     "dirichlet:0.1", "unknown",    "unknown:1",
    "balanced",     "hot-rank:8", "hot-expert:8", "spread-heat:8", "rotating:4", "burst:16:0.5"};

std::vector<RoutingJob> of_all_sizes(const std::string& scores) {
  std::vector<RoutingJob> jobs;
  for (const int top_k : {3, 1}) {
    for (const int expert_parallel : {4, 1, 16}) {
      for (const std::int64_t tokens : {203, 16, 96, 1, 100, 256}) {
        jobs.push_back(make("dropless", top_k, scores, expert_parallel, tokens));
      }
    }
  }
  return jobs;
}

// The layers that are routed for two replicas of all jobs, which are as if each was alone.
int routed_layers(const std::vector<RoutingJob>& jobs) {
  RoutingCache cache;
  int routed = 0;
  cache.on_layer([&] { ++routed; });
  cache.announce(jobs, 2);
  for (const RoutingJob& job : jobs) {
    for (const int replica : {0, 1}) {
      INFO(job.key() << " replica " << replica);
      check_same(*cache.get(job, replica), simulate_routing(job, replica));
    }
  }
  return routed;
}

}  // namespace

// A job with a capacity among them is routed token by token, and so are the others with it.
TEST_CASE("rows of counted choices are those of tokens that are routed one by one") {
  for (const std::string& scores : sources) {
    for (const int top_k : {1, 2, 8}) {
      for (const int expert_parallel : {1, 2, 16}) {
        const RoutingJob job = make("dropless", top_k, scores, expert_parallel);
        RoutingJob with_capacity = make("topk", top_k, scores, expert_parallel);
        RoutingJob without_drops = with_capacity;
        without_drops.router.drops = false;
        without_drops.router.priority = Priority::own_score;
        REQUIRE(keeps_all_choices(job));
        REQUIRE(keeps_all_choices(without_drops));
        REQUIRE_FALSE(keeps_all_choices(with_capacity));
        INFO(job.key());
        const std::vector<ReplicaRouting> one_by_one =
            simulate_routing(std::vector<RoutingJob>{job, with_capacity, without_drops}, 1);
        check_same(simulate_routing(job, 1), one_by_one[0]);
        check_same(simulate_routing(without_drops, 1), one_by_one[2]);
      }
    }
  }
}

TEST_CASE("jobs of all groups and numbers of tokens are routed in one pass") {
  for (const char* scores : {"gaussian:0.1", "zipf:1.2", "unknown", "rotating:4"}) {
    CHECK(routed_layers(of_all_sizes(scores)) == 2 * layers);
  }
}

TEST_CASE("scores that speak of ranks are routed in a pass for each size of groups") {
  for (const char* scores : {"hot-rank:8", "spread-heat:8"}) {
    CHECK(routed_layers(of_all_sizes(scores)) == 3 * 2 * layers);
  }
}

// Their logits are drawn anyway.
TEST_CASE("jobs that keep all choices are routed with those of their logits that do not") {
  std::vector<RoutingJob> jobs = {make("dropless", 2, "gaussian:1", 8),
                                  make("top2", 0, "gaussian:1", 8),
                                  make("dropless", 2, "gaussian:1", 4)};
  CHECK(routed_layers(jobs) == 2 * 2 * layers);
  const std::vector<std::string> keys = shared_keys(jobs);
  CHECK(keys[0] == keys[1]);
  CHECK(keys[0] != keys[2]);
  jobs.erase(jobs.begin() + 1);
  CHECK(shared_keys(jobs)[0] == shared_keys(jobs)[1]);
}

TEST_CASE("what more is asked of tokens than their choices") {
  const RoutingJob job = make("dropless", 2, "gaussian:1");
  CHECK(keeps_all_choices(job));
  const auto refused = [&](auto change) {
    RoutingJob other = job;
    change(other);
    CHECK_FALSE(keeps_all_choices(other));
    CHECK(shared_keys(std::vector{other})[0] == other.logits_key());
  };
  refused([](RoutingJob& other) { other.count_copies = true; });
  refused([](RoutingJob& other) { other.fidelity = Fidelity::counts; });
  refused([](RoutingJob& other) { other.router.padding = Padding::busiest; });
  refused([](RoutingJob& other) { other.router.score_function = ScoreFunction::sigmoid; });
  refused([](RoutingJob& other) { other.scores = parse_score_source("ragged-source:4", ""); });
  for (const char* router : {"top2", "top2+fr", "top2+ir", "expert-choice"}) {
    refused([&](RoutingJob& other) { other.router = parse_router(router, 2); });
  }
}

// Whatever else the jobs differ in has keys of its own.
TEST_CASE("only jobs whose tokens choose alike share a pass") {
  const RoutingJob job = make("dropless", 2, "gaussian:1");
  std::vector<RoutingJob> jobs(6, job);
  jobs[1].seed = 43;
  jobs[2].layers = 4;
  jobs[3].experts = 64;
  jobs[4].gpus = 32;
  jobs[5].scores = parse_score_source("gaussian:0.5", "");
  const std::vector<std::string> keys = shared_keys(jobs);
  CHECK(std::set<std::string>(keys.begin(), keys.end()).size() == jobs.size());
}
