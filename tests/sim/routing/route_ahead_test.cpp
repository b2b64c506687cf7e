#include "sim/routing/simulation/route_ahead.hpp"

#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

RoutingJob make(const std::string& router) {
  RoutingJob job;
  job.router = parse_router(router, 0);
  job.router.capacity_factor = Decimal::parse("1", "factor");
  job.scores = parse_score_source("gaussian:0.1", "--routing");
  job.experts = 8;
  job.gpus = 16;
  job.expert_parallel = 8;
  job.gpus_per_domain = 4;
  job.tokens_per_gpu = 64;
  job.layers = 3;
  return job;
}

struct Watched {
  std::vector<std::size_t> done;
  std::size_t total = 0;
  RoutedWatcher watcher() {
    return [this](std::size_t units, std::size_t of) {
      done.push_back(units);
      total = of;
    };
  }
};

}  // namespace

TEST_CASE("of one job routed ahead the layers are counted") {
  const std::vector<RoutingJob> jobs{make("top2")};
  for (const int threads : {1, 3}) {
    RoutingCache cache;
    Watched watched;
    route_ahead(jobs, 4, threads, cache, watched.watcher());
    CHECK(watched.total == 4 * 3);
    REQUIRE(watched.done.size() == watched.total);
    for (std::size_t unit = 0; unit < watched.total; ++unit) CHECK(watched.done[unit] == unit + 1);
    CHECK(cache.get(jobs[0], 3)->loss.failed == simulate_routing(jobs[0], 3).loss.failed);
    CHECK(watched.done.size() == watched.total);  // found in the cache: nothing was routed again
  }
}

TEST_CASE("threads share the layers of a replica") {
  std::vector<RoutingJob> jobs{make("top2")};
  jobs.front().layers = 24;
  RoutingCache cache;
  std::set<std::thread::id> threads;
  std::size_t layers = 0;
  route_ahead(jobs, 1, 2, cache, [&](std::size_t done, std::size_t) {
    threads.insert(std::this_thread::get_id());
    layers = done;
    // Time for the other thread to start.
    if (done == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  CHECK(threads.size() == 2);
  CHECK(layers == 24);
  CHECK(cache.get(jobs[0], 0)->loss.failed == simulate_routing(jobs[0], 0).loss.failed);
  CHECK(layers == 24);
}

TEST_CASE("of several jobs routed ahead the replicas are counted") {
  const std::vector<RoutingJob> jobs{make("top1"), make("top2"), make("top2+fr")};
  RoutingCache cache;
  Watched watched;
  route_ahead(jobs, 2, 3, cache, watched.watcher());
  CHECK(watched.total == 6);
  CHECK(watched.done == std::vector<std::size_t>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("routing ahead passes on what a replica throws, and no jobs are no work") {
  RoutingCache cache;
  const std::vector<RoutingJob> jobs{make("top2"), make("dense")};
  CHECK_THROWS_AS(route_ahead(jobs, 2, 2, cache), UsageError);
  CHECK(cache.seconds_left().value_or(0) == 0.0);  // nobody asks for what it had announced
  Watched watched;
  route_ahead({}, 2, 2, cache, watched.watcher());
  CHECK(watched.done.empty());
}
