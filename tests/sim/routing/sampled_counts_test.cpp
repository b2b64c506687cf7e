// Counts from a sample of tokens: what they sum to, their spread, and what is refused.
#include "sim/routing/counts/sampled_counts.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/routing/counts/count_router.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/count_distance.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

RoutingJob make(const std::string& router, int top_k, const std::string& scores = "gaussian:0.1") {
  RoutingJob job;
  job.router = parse_router(router, top_k);
  job.scores = parse_score_source(scores, "--routing");
  job.experts = 32;
  job.gpus = 32;
  job.expert_parallel = 16;
  job.gpus_per_domain = 8;
  job.tokens_per_gpu = 1000;
  job.layers = 2;
  job.fidelity = Fidelity::counts;
  job.count_copies = true;
  return job;
}

std::int64_t sum_of(const std::int32_t* values, std::size_t count) {
  return std::accumulate(values, values + count, std::int64_t{0});
}

// `tokens` tokens, each with the expert that `choose(token)` says: one choice.
template <typename Choose>
LayerSample sample_of(std::size_t tokens, const Choose& choose) {
  LayerSample sample;
  sample.tokens = tokens;
  for (std::size_t token = 0; token < tokens; ++token) sample.expert.push_back(choose(token));
  return sample;
}

struct Moments {
  double mean = 0, variance = 0;
};

Moments moments_of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  Moments found;
  for (const double value : values) found.mean += value / count;
  for (const double value : values) {
    found.variance += (value - found.mean) * (value - found.mean) / (count - 1);
  }
  return found;
}

}  // namespace

TEST_CASE("counts of routers that keep all are as far from tokens as the bars allow", "[slow]") {
  // A part of `bench_counts kept`: with three standard errors on top of the bar.
  for (const DistanceShape& shape : {DistanceShape{"gaussian:0.1", 64, 16, 16, 1000, 16},
                                     DistanceShape{"ragged-source:3", 64, 16, 16, 1000, 16},
                                     DistanceShape{"zipf:0.5", 16, 16, 16, 600, 32}}) {
    const std::vector<Distance> distances = count_distances(shape, kept_routers(shape.experts));
    CHECK(distances.size() >= 4);
    for (const Distance& distance : distances) {
      CHECK(distance.metrics.size() == 6);
      for (const Distance::Metric& metric : distance.metrics) {
        INFO(shape.name() << ", " << distance.router << ": " << metric.name << " of "
                          << metric.tokens << " is off by " << metric.off << " +- "
                          << metric.error);
        CHECK(std::abs(metric.off) <= metric.bar + 3 * metric.error);
      }
    }
  }
}

TEST_CASE("each GPU has the routes and copies of its tokens", "[routing]") {
  for (const char* scores : {"gaussian:0.1", "ragged-source:3", "empty-rank"}) {
    for (const char* router :
         {"dropless", "group-limited:4:2", "bias-balanced:0.01:300+groups:4:2"}) {
      const RoutingJob job = make(router, 4, scores);
      check(job);
      for (const LayerRouting& layer : simulate_routing(job, 0).layers) {
        for (int gpu = 0; gpu < job.gpus; ++gpu) {
          const std::int64_t tokens = job.tokens_of(gpu);
          const std::int32_t* rows = layer.kept_rows.data() + std::ptrdiff_t{gpu} * 32;
          const std::int32_t* to_gpu = layer.copies.to_gpu.data() + std::ptrdiff_t{gpu} * 16;
          const std::int32_t* to_node = layer.copies.to_node.data() + std::ptrdiff_t{gpu} * 2;
          CHECK(sum_of(rows, 32) == 4 * tokens);
          for (int rank = 0; rank < 16; ++rank) {
            const std::int64_t routes = sum_of(rows + std::ptrdiff_t{rank} * 2, 2);
            CHECK(to_gpu[rank] <= routes);
            CHECK(2 * to_gpu[rank] >= routes);  // two experts of a token at most
          }
          for (int node = 0; node < 2; ++node) {
            CHECK(to_node[node] <= tokens);
            CHECK(to_node[node] <= sum_of(to_gpu + std::ptrdiff_t{node} * 8, 8));
          }
          CHECK(to_node[0] + to_node[1] >= tokens);
        }
      }
    }
  }
}

TEST_CASE("where a token has one expert, its copies are the rows kept", "[routing]") {
  for (const char* router : {"top1", "random", "hash:1"}) {
    RoutingJob job = make(router, 0);
    job.router.capacity_factor = Decimal::parse("0.9", "factor");
    const LayerRouting layer = simulate_routing(job, 0).layers.front();
    CHECK(layer.loss.failed > 0.05);
    REQUIRE(layer.copies.to_gpu.size() == 32 * 16);
    for (std::size_t at = 0; at < layer.copies.to_gpu.size(); ++at) {
      CHECK(layer.copies.to_gpu[at] == sum_of(layer.kept_rows.data() + 2 * at, 2));
    }
    for (std::size_t at = 0; at < layer.copies.to_node.size(); ++at) {
      CHECK(layer.copies.to_node[at] == sum_of(layer.copies.to_gpu.data() + 8 * at, 8));
    }
  }
}

TEST_CASE("experts of a group are wanted together", "[routing]") {
  // With one of two groups kept a node gets all k = 4 routes of a token or none: of S = 1,000
  // tokens per GPU its rows are 4 Binomial(S, 1/2), of variance 16 S / 4 = 4,000. Independent
  // experts would have at most S k / 4 = 1,000. The variance of 32 * 64 GPUs has a standard error
  // of sqrt(2 / 2,048) = 3.1 %; that of the sample, 8,192 tokens as 512 tiles, 6.3 %.
  RoutingJob job = make("group-limited:2:1", 4, "gaussian:0");
  job.gpus = 2048;
  job.layers = 1;
  const LayerRouting layer = simulate_routing(job, 0).layers.front();
  std::vector<double> rows;
  double apart = 0;
  for (std::size_t gpu = 0; gpu < 2048; ++gpu) {
    rows.push_back(static_cast<double>(sum_of(layer.kept_rows.data() + gpu * 32, 16)));
    apart += std::abs(rows.back() - 4.0 * layer.copies.to_node[gpu * 2]);
  }
  // Up to three routes of the sample are corrected singly.
  CHECK(apart / 2048 < 1);
  const Moments found = moments_of(rows);
  // Shares are freed of the sample's noise: the group's would be 0.5 +- 0.0055 with it.
  CHECK(found.mean == Approx(2000).epsilon(0.012));
  CHECK(found.variance == Approx(4000).epsilon(4 * 0.07));
}

TEST_CASE("a sample is given the shares that are asked for", "[routing]") {
  // All tokens of the sample want expert 0 or 1 in turn; asked for are 1/2, 1/4, 1/4, 0.
  const LayerSample sample =
      sample_of(8192, [](std::size_t token) { return static_cast<std::uint16_t>(token % 2); });
  const std::vector<double> shares{0.5, 0.25, 0.25, 0};
  SampledCounts counts(sample, shares, {4, 1, 0, 1}, best_simd_level());
  std::vector<std::int64_t> held(4, 0);
  for (const std::uint16_t expert : counts.sample().expert) ++held[expert];
  CHECK(held == std::vector<std::int64_t>{4096, 2048, 2048, 0});
}

TEST_CASE("many tokens have the spread of few, by size", "[routing]") {
  // Expert 0 has 1/4 of independent tokens: Binomial(S, 1/4), whether tiles are drawn one by one or
  // how often each is drawn. Means of 400 GPUs have a standard error of 5 % of the deviation, the
  // sample's own share is exact; variances 7 %, and 6 % for the sample of 512 tiles.
  const LayerSample sample = sample_of(8192, [](std::size_t token) {
    return static_cast<std::uint16_t>(philox_block({7, Purpose::test_data}, token)[0] % 4);
  });
  const std::vector<double> shares(4, 0.25);
  for (const std::int64_t tokens : {std::int64_t{1605}, std::int64_t{1} << 17}) {
    SampledCounts counts(sample, shares, {4, 1, 0, 1}, best_simd_level());
    std::vector<double> first;
    for (std::uint32_t gpu = 0; gpu < 400; ++gpu) {
      std::int32_t drawn[4];
      counts.draw({1, Purpose::counts}, gpu, tokens, {drawn, nullptr, nullptr});
      CHECK(sum_of(drawn, 4) == tokens);
      first.push_back(drawn[0]);
    }
    const double variance = static_cast<double>(tokens) * 3 / 16;
    const Moments found = moments_of(first);
    CHECK(std::abs(found.mean - static_cast<double>(tokens) / 4) < 4 * 0.05 * std::sqrt(variance));
    CHECK(found.variance == Approx(variance).epsilon(4 * 0.093));
  }
}

TEST_CASE("shares are freed of the noise of sampling, and of nothing else", "[routing]") {
  const auto spread = [](const std::vector<double>& shares) {
    const Moments moments = moments_of(shares);
    return std::sqrt(moments.variance) / moments.mean;
  };
  // 8,192 tokens, 64 experts all alike: frequencies differ by 1 / sqrt(128) = 8.8 %.
  const LayerSample even = sample_of(8192, [](std::size_t token) {
    return static_cast<std::uint16_t>(philox_block({3, Purpose::test_data}, token)[0] % 64);
  });
  const std::vector<float> no_offsets(64, 0.0F);
  CHECK(spread(smoothed_shares(even, no_offsets, 1, 1)) < 0.04);
  // Every other expert is twice as likely, which no offset tells.
  const LayerSample uneven = sample_of(8192, [](std::size_t token) {
    const std::uint32_t drawn = philox_block({3, Purpose::test_data}, token)[0] % 96;
    return static_cast<std::uint16_t>(drawn < 32 ? 2 * drawn
                                                 : drawn - 32 + (drawn % 2 == 0 ? 1 : 0));
  });
  std::vector<double> chosen(64, 0.0);
  for (const std::uint16_t expert : uneven.expert) chosen[expert] += 1;
  const std::vector<double> smoothed = smoothed_shares(uneven, no_offsets, 1, 1);
  CHECK(std::accumulate(smoothed.begin(), smoothed.end(), 0.0) == Approx(1));
  CHECK(spread(smoothed) == Approx(spread(chosen)).epsilon(0.1));
}

TEST_CASE("every instruction set draws the same sampled counts", "[routing]") {
  const RoutingJob job = make("group-limited:4:2", 4);
  std::vector<LayerRouting> first(1);
  CountRouter(SimdLevel::baseline).route({&job, 1}, 0, 0, first);
  for (const SimdLevel level : available_simd_levels()) {
    std::vector<LayerRouting> other(1);
    CountRouter(level).route({&job, 1}, 0, 0, other);
    CHECK(other[0].kept_rows == first[0].kept_rows);
    CHECK(other[0].copies.to_gpu == first[0].copies.to_gpu);
    CHECK(other[0].copies.to_node == first[0].copies.to_node);
  }
}

TEST_CASE("sampled counts depend on the job alone", "[routing]") {
  std::vector<RoutingJob> jobs;
  for (const char* router : {"dropless", "group-limited:4:2", "group-limited:4:1", "top1"}) {
    jobs.push_back(make(router, std::string(router) == "top1" ? 0 : 4));
  }
  jobs.push_back(jobs[1]);
  jobs.back().router.group_score = GroupScore::top2;
  jobs.push_back(jobs[1]);
  jobs.back().count_copies = false;
  const std::vector<ReplicaRouting> together = simulate_routing(jobs, 3);
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    const ReplicaRouting alone = simulate_routing(jobs[job], 3);
    CHECK(alone.layers[1].kept_rows == together[job].layers[1].kept_rows);
    CHECK(alone.layers[1].copies.to_gpu == together[job].layers[1].copies.to_gpu);
    CHECK(alone.loss.residual_loss == together[job].loss.residual_loss);
  }
  CHECK(together[1].layers[0].kept_rows == together.back().layers[0].kept_rows);
  CHECK(together[1].layers[0].kept_rows != together[4].layers[0].kept_rows);
}

TEST_CASE("copies and capacities that counts do not know are refused", "[routing]") {
  CHECK_THROWS_WITH(check(make("top2", 0)),
                    ContainsSubstring("how many tokens a GPU or node needs"));
  RoutingJob limited = make("group-limited:4:2", 4);
  limited.router.drops = true;
  CHECK_THROWS_WITH(check(limited), ContainsSubstring("how many tokens a GPU or node needs"));
  RoutingJob across = make("dropless", 4);
  across.gpus_per_domain = 6;
  CHECK_THROWS_WITH(check(across), ContainsSubstring("NVLink domains of 6"));
  RoutingJob ragged = make("top2", 0, "ragged-source:2");
  ragged.count_copies = false;
  CHECK_THROWS_WITH(check(ragged), ContainsSubstring("each with its capacity"));
}
