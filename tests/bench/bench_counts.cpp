// Routing by counts against routing tokens.
//   bench_counts distance [--keep FOLDER] [WORDS]...
//                                      the grid (or its shapes whose names have all WORDS, such as
//                                      "zipf:0.5," "E 64," "S 1024,"): for every shape the figures
//                                      beyond their bars; the largest of each over all shapes.
//                                      FOLDER keeps what routing tokens gave, which takes hours
//   bench_counts kept [--keep FOLDER] [WORDS]...
//                                      the same grid of routers that keep all routes, with the
//                                      tokens that each GPU and node needs once
//   bench_counts cost [THREADS]        seconds of one replica of 1,024 GPUs, 256 experts,
//                                      60 layers, top-8, by counts, router by router: CPU and wall
//                                      time of one thread, and of THREADS (2), which share the
//                                      layers: the wall time, and the CPU time of the busiest
//                                      thread, which it comes to where nothing else runs
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/imbalance.hpp"
#include "sim/routing/simulation/routing_cache.hpp"
#include "tests/support/count_distance.hpp"

namespace {

using namespace moesim;
using namespace moesim::routing;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Tally {
  double worst = 0, worst_error = 0, squares = 0, count = 0;
  int beyond = 0, significant = 0;
};

bool is_wanted(const DistanceShape& shape, std::span<char*> words) {
  return std::all_of(words.begin(), words.end(), [&](const char* word) {
    return shape.name().find(word) != std::string::npos;
  });
}

int show_distances(std::span<char*> words, bool kept) {
  std::string folder;
  if (words.size() >= 2 && std::strcmp(words[0], "--keep") == 0) {
    folder = words[1];
    words = words.subspan(2);
  }
  std::map<std::string, Tally> all;
  for (const DistanceShape& shape : kept ? kept_shapes() : all_shapes()) {
    if (!is_wanted(shape, words)) continue;
    fmt::print("{}, {} layers\n", shape.name(), shape.layers);
    for (const Distance& distance : count_distances(
             shape, kept ? kept_routers(shape.experts) : distance_routers(shape.experts), folder)) {
      for (const Distance::Metric& metric : distance.metrics) {
        Tally& tally = all[metric.name];
        tally.squares += metric.off * metric.off;
        tally.count += 1;
        if (std::abs(metric.off) > std::abs(tally.worst)) {
          tally.worst = metric.off;
          tally.worst_error = metric.error;
        }
        if (std::abs(metric.off) <= metric.bar) continue;
        const bool significant = std::abs(metric.off) > metric.bar + 3 * metric.error;
        tally.beyond += 1;
        tally.significant += significant ? 1 : 0;
        fmt::print("  {:<44} {:<17} {:>10.2f} {:+.2f} +- {:.2f}{}\n", distance.router, metric.name,
                   metric.tokens, metric.off, metric.error, significant ? "  beyond the bar" : "");
      }
    }
    std::fflush(stdout);
  }
  fmt::print("\n{:<17} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n", "", "rms", "worst", "+-", "figures",
             "beyond", "signif.");
  int failures = 0;
  for (const auto& [name, tally] : all) {
    fmt::print("{:<17} {:>8.3f} {:>+8.3f} {:>8.3f} {:>8} {:>8} {:>8}\n", name,
               std::sqrt(tally.squares / tally.count), tally.worst, tally.worst_error, tally.count,
               tally.beyond, tally.significant);
    failures += tally.significant;
  }
  return failures == 0 ? 0 : 5;
}

RoutingJob large_job(const char* router) {
  RoutingJob job;
  const std::string name = router;
  const std::size_t copies = name.find(" copies");
  job.count_copies = copies != std::string::npos;
  job.router = parse_router(name.substr(0, copies), 0, 8);
  job.router.capacity_factor = Decimal(job.router.top_k);
  job.scores = parse_score_source("gaussian:0.1", "scores");
  job.experts = 256;
  job.gpus = 1024;
  job.expert_parallel = 64;
  job.gpus_per_domain = 8;
  job.tokens_per_gpu = 4096;
  job.layers = 60;
  job.fidelity = Fidelity::counts;
  return job;
}

struct Cost {
  double wall = 0, cpu = 0, busiest = 0, failed = 0;
};

// The least of three turns.
Cost cost_of(const RoutingJob& job, int threads) {
  Cost least;
  for (int turn = 0; turn < 3; ++turn) {
    RoutingCache cache;
    const double cpu = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    std::vector<double> busy(static_cast<std::size_t>(threads));
    std::vector<std::jthread> workers;
    for (double& seconds : busy) {
      workers.emplace_back([&] {
        cache.get(job, 0);
        seconds = thread_seconds();
      });
    }
    workers.clear();  // waits
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
    if (turn > 0 && wall.count() >= least.wall) continue;
    least = {wall.count(), cpu_seconds() - cpu, *std::max_element(busy.begin(), busy.end()),
             cache.get(job, 0)->loss.failed};
  }
  return least;
}

int show_cost(int threads) {
  fmt::print("{:<32} {:>8} {:>8} {:>14} {:>8} {:>8}\n", "router", "CPU s", "wall s",
             fmt::format("of {} threads", threads), "ratio", "busiest");
  for (const char* router :
       {"dropless", "top8", "top8+fr", "top8+ir", "top8+fr+ir", "random", "random:balanced",
        "hash:1", "dropless copies", "group-limited:8:4 copies", "bias-balanced+groups:8:4",
        "bias-balanced+groups:8:4 copies"}) {
    const RoutingJob job = large_job(router);
    const Cost one = cost_of(job, 1);
    const Cost many = cost_of(job, threads);
    fmt::print("{:<32} {:>8.2f} {:>8.2f} {:>14.2f} {:>8.2f} {:>8.2f}   failed {:.2f} %\n", router,
               one.cpu, one.wall, many.wall, one.wall / many.wall, many.busiest, 100 * one.failed);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count >= 2 && std::strcmp(words[1], "distance") == 0) {
    return show_distances({words + 2, words + count}, false);
  }
  if (count >= 2 && std::strcmp(words[1], "kept") == 0) {
    return show_distances({words + 2, words + count}, true);
  }
  if (count >= 2 && count <= 3 && std::strcmp(words[1], "cost") == 0) {
    const int threads = count == 3 ? std::atoi(words[2]) : 2;
    if (threads >= 1) return show_cost(threads);
  }
  fmt::print(stderr, "bench_counts distance|kept [--keep FOLDER] [WORDS]... | cost [THREADS]\n");
  return 2;
}
