#include "sim/routing/scores/score_fit.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/npy.hpp"
#include "sim/base/random.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

// Log-normal popularity of variance `spread` per layer.
ScoreModel model_of(int experts, int layers, int top_k, double spread) {
  ScoreModel model;
  model.name = "known";
  model.experts = experts;
  model.top_k = top_k;
  for (int layer = 0; layer < layers; ++layer) {
    Stream stream({9, Purpose::test_data, 0, static_cast<std::uint32_t>(layer), 0});
    std::vector<double> shares;
    for (int expert = 0; expert < experts; ++expert) {
      shares.push_back(std::exp(std::sqrt(spread) * stream.normal()));
    }
    const double whole = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& share : shares) share /= whole;
    model.popularity.push_back(shares);
  }
  return model;
}

// The mean over layers of log(E sum p^2).
double squares_of(const ScoreModel& model) {
  double sum = 0;
  for (const std::vector<double>& layer : model.popularity) {
    sum += std::log(std::inner_product(layer.begin(), layer.end(), layer.begin(), 0.0) *
                    model.experts);
  }
  return sum / static_cast<double>(model.popularity.size());
}

struct Size {
  int steps = 1, ranks = 1;
  std::int64_t tokens = 512;
};

// Counts of tokens that are really routed, with room for all.
CountTable routed(const ScoreModel& model, const Size& size, std::uint64_t seed) {
  CountTable table;
  table.steps = size.steps;
  table.ranks = size.ranks;
  table.layers = static_cast<int>(model.popularity.size());
  table.experts = model.experts;
  table.top_k = model.top_k;
  table.tokens = size.tokens;
  RoutingJob job;
  job.router = parse_router("topk", model.top_k);
  job.router.capacity_factor = Decimal(model.experts);
  job.scores.kind = ScoreSource::Kind::scores;
  job.scores.model = std::make_shared<const ScoreModel>(model);
  job.experts = model.experts;
  job.gpus = size.ranks;
  job.expert_parallel = 1;
  job.tokens_per_gpu = size.tokens;
  job.layers = table.layers;
  job.seed = seed;
  for (int step = 0; step < size.steps; ++step) {
    const ReplicaRouting replica = simulate_routing(job, step);
    for (int rank = 0; rank < size.ranks; ++rank) {
      for (const LayerRouting& layer : replica.layers) {
        const auto row =
            layer.kept_rows.begin() + static_cast<std::ptrdiff_t>(rank) * model.experts;
        table.counts.insert(table.counts.end(), row, row + model.experts);
      }
    }
  }
  return table;
}

}  // namespace

// The parameters that generated a trace, against those fitted to it, over seeds. 25 estimates of
// five figures stay within 3.5 of their standard errors (P = 0.01 for normal errors), and their
// means within 3 standard errors of a mean, plus 5 % for the terms of second order in the
// variances.
TEST_CASE("known parameters come back within their stated errors") {
  ScoreModel model = model_of(32, 6, 2, 0.5);
  model.drift = FittedValue{0.05, 0};
  model.autocorrelation = FittedValue{0.7, 0};
  model.step = FittedValue{0.02, 0};
  model.rank = FittedValue{0.02, 0};
  model.rank_step = FittedValue{0.03, 0};
  constexpr std::uint64_t seeds = 5;
  using Figure = std::optional<FittedValue> ScoreModel::*;
  const std::vector<Figure> figures{&ScoreModel::drift, &ScoreModel::autocorrelation,
                                    &ScoreModel::step, &ScoreModel::rank, &ScoreModel::rank_step};
  std::vector<double> means(figures.size(), 0.0);
  std::vector<double> errors(figures.size(), 0.0);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const ScoreModel fitted = fit_score_model(routed(model, {30, 6, 512}, seed), "known");
    for (std::size_t at = 0; at < figures.size(); ++at) {
      const FittedValue found = *(fitted.*figures[at]);
      const double truth = (model.*figures[at])->value;
      INFO("figure " << at << ", seed " << seed << ": " << found.value << " +- " << found.error);
      CHECK(std::abs(found.value - truth) < 3.5 * found.error);
      CHECK(found.error < 0.5 * truth);  // an error that says nothing holds anything
      means[at] += found.value / seeds;
      errors[at] += found.error / seeds;
    }
    CHECK(std::abs(fitted.spread.value - squares_of(model)) < 3.5 * fitted.spread.error);
  }
  for (std::size_t at = 0; at < figures.size(); ++at) {
    INFO("figure " << at);
    const double truth = (model.*figures[at])->value;
    CHECK(std::abs(means[at] - truth) <
          3 * errors[at] / std::sqrt(static_cast<double>(seeds)) + 0.05 * truth);
  }
}

// 4 routes per expert and cell: the noise of counting alone is a variance of log-popularity of 1/4.
TEST_CASE("counting noise is no difference between ranks or steps") {
  for (const int top_k : {1, 4}) {
    const ScoreModel model = model_of(16, 4, top_k, 0.3);
    const ScoreModel fitted = fit_score_model(routed(model, {12, 8, 64 / top_k}, 3), "constant");
    for (const auto& figure : {fitted.drift, fitted.step, fitted.rank, fitted.rank_step}) {
      INFO("top " << top_k << ": " << figure->value << " +- " << figure->error);
      CHECK(figure->value < 3 * figure->error);
      CHECK(figure->value < 0.02);
    }
    CHECK(fitted.spread.value == Approx(squares_of(model)).epsilon(0.05));
  }
}

TEST_CASE("a trace of one step or one rank leaves out what it cannot tell") {
  ScoreModel model = model_of(16, 4, 2, 0.3);
  model.rank = FittedValue{0.04, 0};
  model.rank_step = FittedValue{0.03, 0};
  const ScoreModel one_step = fit_score_model(routed(model, {1, 24, 2048}, 1), "one step");
  CHECK_FALSE(one_step.drift);
  CHECK_FALSE(one_step.step);
  CHECK_FALSE(one_step.rank_step);
  CHECK(std::abs(one_step.rank->value - 0.07) < 3 * one_step.rank->error + 0.05 * 0.07);
  const ScoreModel one_rank = fit_score_model(routed(model, {24, 1, 2048}, 1), "one rank");
  CHECK_FALSE(one_rank.rank);
  CHECK_FALSE(one_rank.step);
  CHECK(std::abs(one_rank.rank_step->value - 0.03) < 3 * one_rank.rank_step->error + 0.05 * 0.03);
  const ScoreModel alone = fit_score_model(routed(model, {1, 1, 2048}, 1), "one cell");
  CHECK_FALSE(alone.rank);
  CHECK_FALSE(alone.rank_step);
  CHECK(alone.spread.value > 0);
}

TEST_CASE("a model fitted, written, read, generated and fitted again is the same model") {
  ScoreModel model = model_of(32, 4, 2, 0.4);
  model.drift = FittedValue{0.08, 0};
  model.autocorrelation = FittedValue{0.6, 0};
  model.step = FittedValue{0.01, 0};
  model.rank = FittedValue{0.02, 0};
  model.rank_step = FittedValue{0.02, 0};
  const ScoreModel first = fit_score_model(routed(model, {40, 8, 512}, 11), "a \"trace\"");
  const std::string path = "score_model_test.json";
  write_file_atomically(path, first.text());
  const std::shared_ptr<const ScoreModel> read = ScoreModel::load(path);
  std::remove(path.c_str());
  CHECK(read->source == "a \"trace\"");
  CHECK(read->steps == 40);
  CHECK(read->ranks == 8);
  CHECK(read->tokens == 512);
  CHECK(read->drift->value == Approx(first.drift->value).epsilon(1e-4));
  const ScoreModel second = fit_score_model(routed(*read, {40, 8, 512}, 12), "generated");
  const auto near = [](const FittedValue& one, const FittedValue& other) {
    CHECK(std::abs(one.value - other.value) < 3 * std::hypot(one.error, other.error));
  };
  near(first.spread, second.spread);
  near(*first.drift, *second.drift);
  near(*first.autocorrelation, *second.autocorrelation);
  near(*first.step, *second.step);
  near(*first.rank, *second.rank);
  near(*first.rank_step, *second.rank_step);
  // Log-popularity is off by the drift of 40 steps, about 4 / 40 of its variance being left in
  // their mean, by 1/8 of what lasts on a rank, and by 1/40 of `step`: 0.1 in all.
  for (std::size_t layer = 0; layer < 4; ++layer) {
    double squares = 0;
    for (std::size_t expert = 0; expert < 32; ++expert) {
      squares +=
          std::pow(std::log(second.popularity[layer][expert] / read->popularity[layer][expert]), 2);
    }
    CHECK(std::sqrt(squares / 32) < 0.2);
  }
}

// Two layers whose variances differ by a factor of 9, in sum 4 times that of one layer: each scale
// within a third, and the variance of the terms, which is what the layers have on average.
TEST_CASE("layers that vary differently come back with a scale each") {
  ScoreModel model = model_of(32, 2, 2, 0.5);
  model.rank_step = FittedValue{0.2, 0};
  model.layer_scale = {0.2, 1.8};
  const ScoreModel fitted = fit_score_model(routed(model, {12, 6, 512}, 1), "known");
  REQUIRE(fitted.layer_scale.size() == 2);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const double found = fitted.layer_scale[layer] * fitted.rank_step->value;
    CHECK(found == Approx(model.layer_scale[layer] * 0.2).epsilon(0.33));
  }
  write_file_atomically("scores_scaled.json", fitted.text());
  const auto read = ScoreModel::load("scores_scaled.json");
  CHECK(read->layer_scale.size() == 2);
  CHECK(read->scale_of(3) == Approx(fitted.layer_scale[1]).epsilon(1e-3));
  CHECK(read->digest() != model.digest());
  const std::string text = fitted.text();
  const std::size_t begin = text.find("\"layer_scale\": [") + 16;
  write_file_atomically("scores_scaled.json",
                        text.substr(0, begin) + "1, 2, 3" + text.substr(text.find(']', begin)));
  CHECK_THROWS_WITH(
      ScoreModel::load("scores_scaled.json"),
      ContainsSubstring("/layer_scale") && ContainsSubstring("3 scales for the 2 layers"));
  std::filesystem::remove("scores_scaled.json");
}

TEST_CASE("a table that does not add up is refused with its place") {
  CountTable table;
  table.layers = 2;
  table.experts = 3;
  table.top_k = 2;
  table.tokens = 5;
  table.counts = {5, 4, 1, 5, 5, 1};
  CHECK_THROWS_WITH(
      fit_score_model(table, "x.json"),
      ContainsSubstring("step 0, rank 0, layer 1 sum to 11, not to 5 tokens times 2"));
  table.counts.pop_back();
  CHECK_THROWS_AS(fit_score_model(table, "x.json"), UsageError);
}

TEST_CASE("a trace of each kind is counted") {
  const auto trace =
      Trace::of_counts("counts", TraceShape{1, 2, 1, 3, 4, 2}, {3, 2, 1, 0, 0, 1, 2, 3});
  const CountTable table = count_table(*trace);
  CHECK(table.ranks == 2);
  CHECK(table.tokens == 3);
  CHECK(table.counts == std::vector<std::int64_t>{3, 2, 1, 0, 0, 1, 2, 3});
  const auto split =
      Trace::of_counts("split", TraceShape{1, 1, 1, 3, 2, 1}, {1, 2}, Trace::Per::rank);
  CHECK_THROWS_WITH(count_table(*split), ContainsSubstring("per receiving GPU"));
  std::filesystem::create_directory("scores_trace");
  write_npy_float32("scores_trace/logits.npy", {3, 4}, {5, 1, 2, 0, 1, 1, 1, 1, 0, 2, 3, 9});
  write_file_atomically(
      "scores_trace/trace.json",
      R"({"format": "moesim trace 1", "name": "t", "model": "m", "source": "made", "licence": "none",
          "origin": "synthetic", "kind": "logits", "axes": ["token", "expert"], "tokens": 3,
          "experts": 4, "top_k": 2, "array": "logits.npy"})");
  // Tokens choose 0 and 2; 0 and 1, as all are equal; 3 and 2.
  CHECK(count_table(*Trace::load("scores_trace")).counts == std::vector<std::int64_t>{2, 1, 2, 1});
  std::filesystem::remove_all("scores_trace");
}
