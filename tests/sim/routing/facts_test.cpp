// What is known of routing from elsewhere: closed forms, published figures, measurements.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "sim/base/formats/csv.hpp"
#include "sim/base/random.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

RoutingJob paper_job(const std::string& router, const std::string& factor,
                     const std::string& scores, int top_k = 0) {
  RoutingJob job;
  job.router = parse_router(router, top_k);
  job.router.capacity_factor = Decimal::parse(factor, "factor");
  job.scores = parse_score_source(scores, "--routing");
  job.experts = 8;
  job.gpus = 8;
  job.expert_parallel = 8;
  job.gpus_per_domain = 8;
  job.tokens_per_gpu = 16384;
  job.layers = 1;
  return job;
}

RoutingJob counted_job(std::vector<double> shares, const std::string& router, int top_k) {
  RoutingJob job = paper_job(router, "1", "gaussian:0", top_k);
  job.experts = static_cast<int>(shares.size());
  job.scores.kind = ScoreSource::Kind::counts;
  job.scores.file = "in memory";
  job.scores.popularity =
      std::make_shared<const CountedPopularity>(CountedPopularity::Layers{std::move(shares)});
  job.gpus = 4;
  job.expert_parallel = 4;
  return job;
}

}  // namespace

// Per expert the first choices are Binomial(S, 1/E), close to a normal of variance S (1 - 1/E) / E;
// the mean overflow of a normal above its mean is sigma / sqrt(2 pi). Summed over E experts and
// divided by S: sqrt((E - 1) / (2 pi S)) = 0.399 sqrt((E - 1) / S).
TEST_CASE("uniform top-1 at CF 1 loses 0.399 sqrt((E - 1) / S)") {
  for (const auto& [experts, tokens, quoted] :
       {std::tuple{8, 16384, 0.0082}, std::tuple{64, 4096, 0.0495}}) {
    RoutingJob job = paper_job("top1", "1", "gaussian:0");
    job.experts = experts;
    job.tokens_per_gpu = tokens;
    job.gpus = 64;
    job.layers = 4;
    const double floor = 0.399 * std::sqrt((experts - 1.0) / tokens);
    CHECK(floor == Approx(quoted).epsilon(0.01));
    double failed = 0;
    for (int replica = 0; replica < 2; ++replica) {
      failed += simulate_routing(job, replica).loss.failed / 2;
    }
    CHECK(failed == Approx(floor).epsilon(0.02));
  }
}

// Zeng et al. 2024 state about 5 % unsuccessful routing for top-2; a bias of 0.1 per expert and
// layer gives that (sim/routing/README.md), with a standard deviation of 1.4 points between draws
// of the bias.
TEST_CASE(
    "top-2 at CF 2 loses about 5 % at a bias of 0.1, top-1 with fill-in 50 % of its attempts") {
  std::vector<double> failed;
  for (int replica = 0; replica < 60; ++replica) {
    failed.push_back(simulate_routing(paper_job("top2", "2", "gaussian:0.1"), replica).loss.failed);
  }
  const double mean = std::accumulate(failed.begin(), failed.end(), 0.0) / 60;
  double variance = 0;
  for (const double value : failed) variance += (value - mean) * (value - mean) / 59;
  CHECK(mean == Approx(0.05).margin(4 * 0.014 / std::sqrt(60.0)));
  CHECK(std::sqrt(variance) == Approx(0.014).epsilon(0.4));
  const TokenLoss filled = simulate_routing(paper_job("top1+fr", "1", "gaussian:0.1"), 0).loss;
  CHECK(*filled.failed_attempted >= 0.5);  // CF = k: at least 1 / (k + 1) by construction
  CHECK(*filled.failed_attempted == Approx(0.5).margin(0.01));
  CHECK(*simulate_routing(paper_job("top2+fr", "2", "gaussian:0.1"), 0).loss.failed_attempted >=
        1.0 / 3);
}

// Each published row is one draw of random logits, so it has to lie in the 99 % interval of draws,
// here between the extremes of 200 simulated ones (widened by one token, as the
// table's shares are multiples of 1 / 32,768).
TEST_CASE("drop rates of random logits agree with moe-routing-bench", "[slow]") {
  const std::string path = MOESIM_SOURCE_DIR "/tests/data/routing_bench_drop_rate.csv";
  const CsvTable table = CsvTable::load(path);
  struct Row {
    std::string factor;
    double rate;
  };
  std::map<std::pair<int, int>, std::vector<Row>> rows;  // by experts and k
  for (const auto& cells : table.rows) {
    rows[{std::stoi(cells[table.column("num_experts")]), std::stoi(cells[table.column("top_k")])}]
        .push_back({cells[table.column("capacity_factor")],
                    std::stod(cells[table.column("avg_drop_rate")])});
  }
  int compared = 0;
  for (const auto& [shape, published] : rows) {
    std::vector<RoutingJob> jobs;
    for (const Row& row : published) {
      RoutingJob job = paper_job("top" + std::to_string(shape.second), row.factor, "gaussian:0");
      job.router.capacity_convention = CapacityConvention::library;
      job.router.priority = Priority::position;
      job.experts = shape.first;
      job.tokens_per_gpu = 32768;
      job.gpus = 1;
      job.expert_parallel = 1;
      job.layers = 50;
      jobs.push_back(job);
    }
    std::vector<std::vector<double>> draws(jobs.size());
    for (int replica = 0; replica < 4; ++replica) {
      const std::vector<ReplicaRouting> routed = simulate_routing(jobs, replica);
      for (std::size_t job = 0; job < jobs.size(); ++job) {
        for (const LayerRouting& layer : routed[job].layers)
          draws[job].push_back(layer.loss.failed);
      }
    }
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      std::sort(draws[job].begin(), draws[job].end());
      INFO(shape.first << " experts, top " << shape.second << ", CF " << published[job].factor);
      CHECK(published[job].rate >= draws[job].front() - 1.0 / 32768);
      CHECK(published[job].rate <= draws[job].back() + 1.0 / 32768);
      ++compared;
    }
  }
  CHECK(compared == 42);
}

// OLMoE on c4 (Muennighoff et al. 2024): 15.1 % lost at library CF 1.0 and 7.3 % at 1.25 over
// layers 0, 7 and 15. Over a whole domain every expert simply keeps CF times the mean.
TEST_CASE("counts of OLMoE on c4 lose 15.1 % and 7.3 %") {
  const std::string path = MOESIM_SOURCE_DIR "/tests/data/expert_counts.csv";
  const CsvTable table = CsvTable::load(path);
  std::map<std::string, std::vector<double>> counts;  // by layer
  for (const auto& cells : table.rows) {
    if (cells[table.column("model")] != "OLMoE-1B-7B-0924" ||
        cells[table.column("kind")] != "topk" || cells[table.column("domain")] != "c4") {
      continue;
    }
    counts[cells[table.column("layer")]].push_back(std::stod(cells[table.column("count")]));
  }
  REQUIRE(counts.size() == 3);
  for (const auto& [factor, expected] : {std::pair{1.0, 0.151}, std::pair{1.25, 0.073}}) {
    double lost = 0;
    for (const auto& [layer, values] : counts) {
      const double whole = std::accumulate(values.begin(), values.end(), 0.0);
      const double room = factor * whole / 64;  // a missing expert is a zero
      for (const double value : values) lost += std::max(0.0, value - room) / whole / 3;
    }
    CHECK(lost == Approx(expected).margin(0.0005));
  }
}

// The same counts as a score source: first choices are exact draws from the popularity, so top-1
// over many tokens loses what the shares say.
TEST_CASE("top-1 from counts loses what the counts lose") {
  RoutingJob job = counted_job({0.4, 0.3, 0.2, 0.1}, "top1", 1);
  // Shares above 1/4: 0.15 + 0.05 lost. S = 16,384 on 4 GPUs: a standard error of 0.002 at most.
  CHECK(simulate_routing(job, 0).loss.failed == Approx(0.2).margin(0.008));
  job.router.capacity_factor = Decimal::parse("1.4", "factor");  // 0.35: only 0.05 of the first
  CHECK(simulate_routing(job, 0).loss.failed == Approx(0.05).margin(0.008));
}

// 65,536 tokens: a standard error of at most 0.002 / k of the routes.
TEST_CASE("top-k from counts loads experts as the counts do") {
  const std::vector<double> shares{0.3, 0.2, 0.15, 0.12, 0.1, 0.06, 0.04, 0.03};
  for (const Fidelity fidelity : {Fidelity::tokens, Fidelity::counts}) {
    for (const int top_k : {1, 2, 3}) {
      RoutingJob job = counted_job(shares, "dropless", top_k);
      job.fidelity = fidelity;
      const ReplicaRouting routed = simulate_routing(job, 0);
      const double routes = 4.0 * 16384 * top_k;
      for (std::size_t expert = 0; expert < shares.size(); ++expert) {
        INFO(name_of(fidelity) << ", top " << top_k << ", expert " << expert);
        const double share = static_cast<double>(routed.layers[0].demand[expert]) / routes;
        CHECK(share == Approx(shares[expert]).margin(0.006 / top_k));
      }
    }
  }
}

// With k = 4 a share of 0.3 would be 1.2 experts per token. The rest shares the other three
// choices.
TEST_CASE("an expert of more than 1 / k of the counts is chosen by nearly every token") {
  const RoutingJob job = counted_job({0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05}, "dropless", 4);
  const ReplicaRouting routed = simulate_routing(job, 0);
  constexpr double tokens = 4.0 * 16384;
  const std::vector<std::int64_t>& demand = routed.layers[0].demand;
  CHECK(static_cast<double>(demand[0]) / tokens == Approx(1).margin(0.002));
  CHECK(static_cast<double>(demand[1]) / tokens == Approx(3 * 0.2 / 0.7).margin(0.006));
  CHECK(static_cast<double>(demand[7]) / tokens == Approx(3 * 0.05 / 0.7).margin(0.006));
}

TEST_CASE("jobs of other k do not share the logits of counts") {
  const std::vector<double> shares{0.4, 0.3, 0.2, 0.1};
  CHECK(counted_job(shares, "dropless", 1).logits_key() !=
        counted_job(shares, "dropless", 2).logits_key());
  CHECK(paper_job("topk", "1", "gaussian:0.1", 2).logits_key() ==
        paper_job("topk", "1", "gaussian:0.1", 4).logits_key());
}
