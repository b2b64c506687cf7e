// The named scenarios of --routing: each has a popularity that is known exactly.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "sim/base/error.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

constexpr int experts = 16;
constexpr int ranks = 8;

ScoreSource source_of(const std::string& text) { return parse_score_source(text, "--routing"); }

LogitSource logits_of(const std::string& text, std::uint32_t replica, std::uint32_t layer) {
  return {source_of(text), LogitShape{experts, ranks}, 7, replica, layer};
}

// Offsets are log-popularities up to a constant: shares that sum to 1.
std::vector<double> shares_of(const LogitSource& source) {
  std::vector<double> shares;
  for (const float offset : source.offsets()) shares.push_back(std::exp(offset));
  const double whole = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= whole;
  return shares;
}

std::vector<std::size_t> hot_experts(const LogitSource& source) {
  std::vector<std::size_t> hot;
  const std::vector<double> shares = shares_of(source);
  for (std::size_t expert = 0; expert < shares.size(); ++expert) {
    if (shares[expert] > 1.001 / experts) hot.push_back(expert);
  }
  return hot;
}

std::vector<double> first_choices(const LogitSource& source, int tokens) {
  const std::vector<float> logits = source.rank_logits(3, tokens, tile_kernels(best_simd_level()));
  std::vector<double> counts(experts, 0.0);
  for (int token = 0; token < tokens; ++token) {
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>(token) * experts;
    counts[static_cast<std::size_t>(std::max_element(row, row + experts) - row)] += 1;
  }
  return counts;
}

RoutingJob job_of(const std::string& scores, const std::string& router = "top2") {
  RoutingJob job;
  job.router = parse_router(router, 0, 2);
  job.router.capacity_factor = Decimal(experts);  // no drops
  job.router.capacity_scope = CapacityScope::group;
  job.scores = source_of(scores);
  job.experts = experts;
  job.gpus = 2 * ranks;
  job.expert_parallel = ranks;
  job.tokens_per_gpu = 701;
  job.layers = 2;
  return job;
}

}  // namespace

TEST_CASE("scenarios are parsed with their usual values, named in full and refused") {
  const std::map<std::string, std::string> names{
      {"balanced", "balanced"},           {"hot-expert", "hot-expert:4"},
      {"hot-expert:10", "hot-expert:10"}, {"hot-rank", "hot-rank:4"},
      {"spread-heat:2", "spread-heat:2"}, {"rotating", "rotating:4"},
      {"burst", "burst:4:0.25"},          {"burst:8", "burst:8:0.25"},
      {"burst:8:0.5", "burst:8:0.5"},     {"ragged-source", "ragged-source:4"},
      {"empty-rank", "empty-rank"}};
  for (const auto& [text, name] : names) {
    CHECK(source_of(text).name() == name);
    CHECK(source_of(name).name() == name);
  }
  for (const char* text :
       {"balanced:1", "balanced:", "empty-rank:1", "hot-expert:", "hot-expert:0.5", "hot-expert:x",
        "hot-rank:4:2", "burst:4:", "burst:4:1.5", "burst:4:-1", "burst:4:x", "ragged-source:0.9",
        "hot", "rotating:1e9"}) {
    INFO(text);
    CHECK_THROWS_AS(source_of(text), UsageError);
  }
  CHECK_THROWS_WITH(source_of("hot"), ContainsSubstring("hot-expert:X, hot-rank:X"));
}

// Gumbel noise makes first choices exact draws from the popularity, so Pearson's statistic of
// 200,000 of them has a chi-square law of E - 1 = 15 degrees of freedom: variance 30. A source that
// had another popularity by 10 % at one expert would stand off by 200,000 / 16 * 0.01 = 125.
TEST_CASE("first choices follow the popularity of each scenario") {
  for (const char* text : {"balanced", "hot-expert:4", "hot-rank:3", "spread-heat:3", "rotating:5",
                           "burst:4:1", "ragged-source:2", "empty-rank"}) {
    INFO(text);
    const int tokens = 200000;
    const LogitSource source = logits_of(text, 5, 2);
    const std::vector<double> shares = shares_of(source);
    const std::vector<double> counts = first_choices(source, tokens);
    double chi_square = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const double expected = shares[expert] * tokens;
      chi_square += std::pow(counts[expert] - expected, 2) / expected;
    }
    CHECK(chi_square < 15 + 4 * std::sqrt(30.0));
  }
}

TEST_CASE("a hot expert is X times as popular as any other, and any expert can be it") {
  std::map<std::size_t, int> hot;
  for (std::uint32_t layer = 0; layer < 1600; ++layer) {
    const LogitSource source = logits_of("hot-expert:4", 0, layer);
    REQUIRE(hot_experts(source).size() == 1);
    ++hot[hot_experts(source)[0]];
    if (layer > 0) continue;
    std::vector<double> shares = shares_of(source);
    std::sort(shares.begin(), shares.end());
    CHECK(shares.back() == Approx(4.0 / 19).epsilon(1e-6));  // X / (X + E - 1)
    CHECK(shares.front() == Approx(1.0 / 19).epsilon(1e-6));
  }
  CHECK(hot.size() == experts);  // 100 each, a binomial of standard deviation 9.7
  for (const auto& [expert, count] : hot) CHECK(std::abs(count - 100) < 4 * 9.7);
}

TEST_CASE("a hot rank has all its experts hot; spread heat has as many, no two on one rank") {
  for (std::uint32_t layer = 0; layer < 40; ++layer) {
    const LogitSource together = logits_of("hot-rank:3", 1, layer);
    const LogitSource apart = logits_of("spread-heat:3", 1, layer);
    const std::vector<std::size_t> hot = hot_experts(together);
    REQUIRE(hot.size() == experts / ranks);
    CHECK(hot[0] % 2 == 0);  // two experts per rank
    CHECK(hot[1] == hot[0] + 1);
    const std::vector<double> shares = shares_of(together);
    CHECK(shares[hot[0]] + shares[hot[1]] == Approx(3.0 / 10).epsilon(1e-6));  // X / (X + P - 1)
    const std::vector<std::size_t> scattered = hot_experts(apart);
    REQUIRE(scattered.size() == 2);
    CHECK(scattered[0] / 2 != scattered[1] / 2);
    // The same popularities, differently placed.
    std::vector<float> one = together.offsets();
    std::vector<float> other = apart.offsets();
    std::sort(one.begin(), one.end());
    std::sort(other.begin(), other.end());
    CHECK(one == other);
  }
  // More hot experts than ranks: three ranks of four experts have 2, 1 and 1.
  const LogitSource crowded(source_of("spread-heat"), LogitShape{12, 3}, 7, 0, 0);
  std::map<std::size_t, int> of_rank;
  for (std::size_t expert = 0; expert < 12; ++expert) {
    if (crowded.offsets()[expert] == 0) ++of_rank[expert / 4];
  }
  std::vector<int> hot;
  for (const auto& [rank, count] : of_rank) hot.push_back(count);
  std::sort(hot.begin(), hot.end());
  CHECK(hot == std::vector<int>{1, 1, 2});
}

TEST_CASE("rotating heat moves by one expert a replica and visits all alike") {
  std::set<std::size_t> starts;
  for (std::uint32_t layer = 0; layer < 20; ++layer) {
    std::set<std::size_t> visited;
    std::size_t before = hot_experts(logits_of("rotating", 0, layer))[0];
    starts.insert(before);
    for (std::uint32_t replica = 1; replica <= experts; ++replica) {
      const std::size_t now = hot_experts(logits_of("rotating", replica, layer))[0];
      CHECK(now == (before + 1) % experts);
      visited.insert(now);
      before = now;
    }
    CHECK(visited.size() == experts);
  }
  CHECK(starts.size() > 1);  // layers start apart
}

TEST_CASE("bursts come in their share of the replicas, in all layers at once") {
  int bursts = 0;
  const int replicas = 1600;
  for (std::uint32_t replica = 0; replica < replicas; ++replica) {
    const std::size_t hot = hot_experts(logits_of("burst:4:0.25", replica, 0)).size();
    bursts += static_cast<int>(hot);
    if (replica > 100) continue;
    for (std::uint32_t layer = 1; layer < 4; ++layer) {
      CHECK(hot_experts(logits_of("burst:4:0.25", replica, layer)).size() == hot);
    }
  }
  // Binomial(1600, 1/4): mean 400, standard deviation 17.3.
  CHECK(std::abs(bursts - 400) < 4 * 17.3);
  CHECK(hot_experts(logits_of("burst:4:0", 3, 0)).empty());
  CHECK(hot_experts(logits_of("burst:4:1", 3, 0)).size() == 1);
}

TEST_CASE("ragged sources hold S down to S / R tokens, an empty rank none") {
  const RoutingJob job = job_of("ragged-source:4");
  // 701 (1 - 3/4 r/7): 701, 625.89, 550.79, 475.68, 400.57, 325.46, 250.36, 175.25.
  const std::vector<std::int64_t> expected{701, 626, 551, 476, 401, 325, 250, 175};
  const ReplicaRouting routed = simulate_routing(job, 0);
  const RoutingJob empty = job_of("empty-rank");
  const ReplicaRouting without = simulate_routing(empty, 0);
  for (int gpu = 0; gpu < job.gpus; ++gpu) {
    CHECK(job.tokens_of(gpu) == expected[static_cast<std::size_t>(gpu % ranks)]);
    CHECK(empty.tokens_of(gpu) == (gpu % ranks == ranks - 1 ? 0 : 701));
    const auto sent = [&](const ReplicaRouting& replica) {
      const auto row = replica.layers[1].kept_rows.begin() + gpu * experts;
      return std::accumulate(row, row + experts, std::int64_t{0});
    };
    CHECK(sent(routed) == 2 * job.tokens_of(gpu));  // top-2, nothing dropped
    CHECK(sent(without) == 2 * empty.tokens_of(gpu));
  }
  CHECK(routed.loss.failed == 0);
}

TEST_CASE("losses of ragged sources are shares of the tokens that are there") {
  RoutingJob job = job_of("empty-rank", "top1");
  job.router.capacity_factor = Decimal(1);
  const ReplicaRouting routed = simulate_routing(job, 0);
  // Slots: 7 ranks of C = ceil(701 / 16) = 44 and one of 0, for each of 16 experts.
  for (const LayerRouting& layer : routed.layers) {
    const double kept = std::accumulate(layer.kept_rows.begin(), layer.kept_rows.end(), 0.0);
    CHECK(layer.loss.failed == Approx(1 - kept / (14 * 701)).epsilon(1e-12));
    CHECK(layer.loss.padded == Approx(1 - kept / (14 * 44 * 16)).epsilon(1e-12));
    CHECK(layer.capacity == 44);
  }
}

TEST_CASE("padded blocks of ragged sources are the largest, their slots each source's own") {
  RoutingJob job = job_of("ragged-source:2", "top1");
  job.router.capacity_scope = CapacityScope::source;
  job.router.capacity_factor = Decimal(1);
  job.router.padding = Padding::capacity;
  const ReplicaRouting padded = simulate_routing(job, 0);
  job.router.padding = Padding::none;
  const ReplicaRouting unpadded = simulate_routing(job, 0);
  // Rank r holds 701 less 701 r / 14, rounded: 50.07 r. C = ceil(S_r / 16).
  const std::int64_t slots[] = {44, 41, 38, 35, 32, 29, 26, 22};
  const std::int64_t held[] = {701, 651, 601, 551, 501, 451, 401, 350};
  const double all_slots = 267 * 16;
  const double all_tokens = 4207;
  for (std::size_t layer = 0; layer < padded.layers.size(); ++layer) {
    const LayerRouting& routed = padded.layers[layer];
    CHECK(routed.capacity == 44);
    CHECK(routed.exchanged_capacity == 44);
    for (int gpu = 0; gpu < job.gpus; ++gpu) {
      const auto rank = static_cast<std::size_t>(gpu % ranks);
      CHECK(job.tokens_of(gpu) == held[rank]);
      const auto row = routed.kept_rows.begin() + gpu * experts;
      CHECK(*std::max_element(row, row + experts) <= slots[rank]);
    }
    // Two groups.
    const double kept = std::accumulate(routed.kept_rows.begin(), routed.kept_rows.end(), 0.0);
    CHECK(routed.loss.failed == Approx(1 - kept / (2 * all_tokens)).epsilon(1e-12));
    CHECK(routed.loss.padded == Approx(1 - kept / (2 * all_slots)).epsilon(1e-12));
    CHECK(routed.kept_rows == unpadded.layers[layer].kept_rows);
  }
}

TEST_CASE("every router takes ragged sources and empty ranks, but for base") {
  for (const char* scores : {"ragged-source:4", "empty-rank"}) {
    for (const char* router :
         {"top2+fr+ir", "dropless", "expert-choice", "base:greedy", "random", "random:balanced",
          "hash", "soft", "scomoe:0.2:0.3", "gating-dropout:0.5+ir", "group-limited:4:2",
          "bias-balanced:0.001:10"}) {
      RoutingJob job = job_of(scores, router);
      job.router.capacity_scope = CapacityScope::source;
      job.router.capacity_factor = Decimal(2);
      CHECK(job.is_ragged());
      const ReplicaRouting routed = simulate_routing(job, 0);
      std::int64_t tokens = 0;
      for (int gpu = 0; gpu < job.gpus; ++gpu) tokens += job.tokens_of(gpu);
      for (const LayerRouting& layer : routed.layers) {
        for (int gpu = 0; gpu < job.gpus; ++gpu) {
          if (job.tokens_of(gpu) > 0) continue;
          const auto row = layer.kept_rows.begin() + gpu * experts;
          CHECK(std::count(row, row + experts, 0) == experts);  // it has nothing to send
        }
        // No more rows than routes; experts and soft slots take up to 2 S, rounded up by expert.
        const double kept = std::accumulate(layer.kept_rows.begin(), layer.kept_rows.end(), 0.0);
        const std::int64_t most = std::max(2, job.router.choices()) * tokens + job.gpus * experts;
        CHECK(kept > 0);
        if (job.router.kind->blocks != ExchangeBlocks::pooled)
          CHECK(kept <= static_cast<double>(most));
        CHECK((layer.loss.failed >= 0 && layer.loss.failed <= 1));
      }
    }
  }
  RoutingJob base = job_of("ragged-source:2", "base");
  CHECK_THROWS_WITH(check(base), ContainsSubstring("rank 0 has 701 and rank 7 has 350") &&
                                     ContainsSubstring("base:greedy"));
  // 704 = 44 x 16 tokens divide, and none do.
  base.scores = source_of("empty-rank");
  base.tokens_per_gpu = 704;
  CHECK_THROWS_WITH(check(base), ContainsSubstring("base:greedy"));
  base.scores = source_of("ragged-source:1");  // ragged in name only
  CHECK_FALSE(base.is_ragged());
  CHECK_NOTHROW(check(base));
  RoutingJob alone = job_of("empty-rank");
  alone.expert_parallel = 1;
  CHECK_THROWS_WITH(check(alone), ContainsSubstring("--expert-parallel"));
}

TEST_CASE("jobs of different scenarios do not share their logits") {
  std::set<std::string> keys;
  for (const char* text : {"balanced", "hot-expert:4", "hot-expert:5", "hot-rank", "spread-heat",
                           "burst:4:0.1", "burst:4:0.2", "ragged-source:2", "ragged-source:3"}) {
    keys.insert(job_of(text).logits_key());
  }
  CHECK(keys.size() == 9);
}
