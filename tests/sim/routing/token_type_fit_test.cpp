#include "sim/routing/scores/token_type_fit.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/npy.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/scores/score_fit.hpp"
#include "sim/routing/tokens/pair_counts.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

struct Size {
  int steps = 4, ranks = 4, layers = 4;
  std::int64_t tokens = 512;
};

// Shares from 2 down to 1 times a number, so that experts differ; drift and ranks as in a trace.
ScoreModel known(int experts, int top_k, double kind) {
  ScoreModel model;
  model.name = "known";
  model.experts = experts;
  model.top_k = top_k;
  std::vector<double> shares;
  for (int expert = 0; expert < experts; ++expert) {
    shares.push_back(std::exp2(-static_cast<double>(expert) / experts));
  }
  const double whole = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= whole;
  model.popularity = {shares};
  model.drift = FittedValue{0.1, 0};
  model.autocorrelation = FittedValue{0.7, 0};
  model.rank_step = FittedValue{0.02, 0};
  model.token_type = FittedValue{kind, 0};
  return model;
}

// A trace of logits that a model generates.
std::shared_ptr<const Trace> recorded(const ScoreModel& model, const Size& size,
                                      std::uint64_t seed) {
  ScoreSource source;
  source.kind = ScoreSource::Kind::scores;
  source.model = std::make_shared<const ScoreModel>(model);
  std::vector<float> logits;
  for (int step = 0; step < size.steps; ++step) {
    std::vector<LogitSource> layers;
    for (int layer = 0; layer < size.layers; ++layer) {
      layers.emplace_back(source, LogitShape{model.experts, 1, size.ranks}, seed,
                          static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(layer));
    }
    for (int rank = 0; rank < size.ranks; ++rank) {
      for (const LogitSource& layer : layers) {
        const std::vector<float> rows = layer.rank_logits(
            static_cast<std::uint32_t>(rank), size.tokens, tile_kernels(best_simd_level()));
        logits.insert(logits.end(), rows.begin(), rows.end());
      }
    }
  }
  // Test programs run side by side in one folder.
  const std::string folder = fmt::format("token_type_fit_trace_{}", ::getpid());
  std::filesystem::create_directory(folder);
  write_npy_float32(folder + "/logits.npy",
                    {size.steps, size.ranks, size.layers, size.tokens, model.experts}, logits);
  write_file_atomically(
      folder + "/trace.json",
      fmt::format(
          R"({{"format": "moesim trace 1", "name": "t", "model": "m", "source": "made", "licence": "none",
          "origin": "synthetic", "kind": "logits", "axes": ["step", "rank", "layer", "token", "expert"],
          "tokens": {}, "experts": {}, "top_k": {}, "array": "logits.npy"}})",
          size.tokens, model.experts, model.top_k));
  const auto trace = Trace::load(folder);
  std::filesystem::remove_all(folder);
  return trace;
}

}  // namespace

// Two halves of tokens, each of 40 that choose 0 and 1, 40 that choose 2 and 3 and 10 of each other
// pair: every expert is chosen by 60 of 120, so each of the 6 pairs is expected 20 times. The
// differences are 20, 20 and four times -10: (2 * 400 + 4 * 100) / (6 * 400) = 1/2.
TEST_CASE("the excess of pairs is their mean squared difference from what loads say") {
  std::vector<std::uint16_t> choices;
  for (int half = 0; half < 2; ++half) {
    const auto append = [&](std::uint16_t one, std::uint16_t other, int times) {
      for (int time = 0; time < times; ++time) choices.insert(choices.end(), {one, other});
    };
    append(0, 1, 40);
    append(3, 2, 40);
    append(0, 2, 10);
    append(0, 3, 10);
    append(1, 2, 10);
    append(3, 1, 10);
  }
  ChoiceTable table;
  table.reset(4, 2, 0, 0, 240);
  table.append_choices(choices, {}, 2, 240);
  PairCounts pairs(4);
  pairs.add(table);
  CHECK(pairs.excess() == Approx(0.5).epsilon(1e-4));
}

// Two choices with weights a have pairs in proportion to a_e a_f: of 8, 1, 1, 1 eight of each with
// the first to one of each other. In the next table the last expert has the weight 8. Each table
// alone has no excess, nor have both: popularity that moves is no correlation. Counted as one
// table, 0 and 3 would be chosen together 16 times, and far more often by their loads.
TEST_CASE("popularity that moves between tables is no correlation") {
  PairCounts pairs(4);
  ChoiceTable table;
  for (const std::uint16_t popular : {0, 3}) {
    std::vector<std::uint16_t> choices;
    for (int half = 0; half < 2; ++half) {
      for (std::uint16_t one = 0; one < 4; ++one) {
        for (std::uint16_t other = 0; other < one; ++other) {
          const int times = one == popular || other == popular ? 80 : 10;
          for (int time = 0; time < times; ++time) choices.insert(choices.end(), {one, other});
        }
      }
    }
    table.reset(4, 2, 0, 0, 540);
    table.append_choices(choices, {}, 2, 540);
    pairs.add(table);
  }
  CHECK(std::abs(pairs.excess()) < 1e-6);
}

// Within 3 standard errors each (of 8 estimates 0.02 would lie beyond if errors were normal), and
// their mean within 3 of its own.
TEST_CASE("types of tokens come back within their stated error", "[slow]") {
  for (const auto& [top_k, truth] : {std::pair{2, 1.0}, std::pair{4, 0.4}}) {
    constexpr int seeds = 4;
    double mean = 0;
    double error = 0;
    for (std::uint64_t seed = 11; seed < 11 + seeds; ++seed) {
      const auto trace = recorded(known(16, top_k, truth), Size{}, seed);
      const FittedValue found = *fit_score_model(*trace, "known").token_type;
      UNSCOPED_INFO("top " << top_k << ", " << truth << ": " << found.value << " +- "
                           << found.error);
      CHECK(std::abs(found.value - truth) < 3 * found.error);
      CHECK(found.error < 0.5 * truth);  // an error that says nothing holds anything
      mean += found.value / seeds;
      error += found.error / seeds;
    }
    CHECK(std::abs(mean - truth) < 3 * error / std::sqrt(static_cast<double>(seeds)));
  }
}

// 120 pairs, each expected m = 8192 / 120 times, half of them in each half: without types the
// products of two differences have a standard deviation of m / 2, their weighted mean one of
// sqrt(120) / 2 / (8192 / 4) = 0.0027 in a layer and 0.0013 on average over four; 48 generated
// layers have 0.0004. The excess is 3/16 of the variance's square: three standard errors are 0.0043
// and a variance of 0.15. Heavy drift is no excess.
TEST_CASE("tokens without types are fitted none") {
  for (std::uint64_t seed = 21; seed < 24; ++seed) {
    ScoreModel model = known(16, 2, 0);
    model.drift = FittedValue{1, 0};
    const FittedValue found = *fit_score_model(*recorded(model, Size{}, seed), "none").token_type;
    INFO("seed " << seed << ": " << found.value << " +- " << found.error);
    CHECK(found.value < 0.15);
    CHECK(found.error > 0.01);
    CHECK(found.error < 0.15);
  }
}

TEST_CASE("types fitted, written, read, generated and fitted again are the same", "[slow]") {
  const ScoreModel first = fit_score_model(*recorded(known(24, 3, 0.6), Size{}, 31), "first");
  const std::string path = fmt::format("token_type_fit_test_{}.json", ::getpid());
  write_file_atomically(path, first.text());
  const std::shared_ptr<const ScoreModel> read = ScoreModel::load(path);
  std::remove(path.c_str());
  REQUIRE(read->token_type);
  CHECK(read->token_type->value == Approx(first.token_type->value).epsilon(1e-4));
  const ScoreModel second = fit_score_model(*recorded(*read, Size{}, 32), "second");
  INFO(first.token_type->value << " +- " << first.token_type->error << ", "
                               << second.token_type->value << " +- " << second.token_type->error);
  CHECK(std::abs(first.token_type->value - second.token_type->value) <
        3 * std::hypot(first.token_type->error, second.token_type->error));
  CHECK(first.token_type->error < 0.2);
}

// The tokens of the shipped trace were routed by a trained model, whose logits are no race of four
// types. What the fit generates has, over 8 runs of its 2 layers, the trace's mean excess within
// three standard errors, these from the scatter of the generated layers; without types it has
// none.
TEST_CASE("what is fitted to a real trace generates its pairs") {
  const auto trace = Trace::load(MOESIM_SOURCE_DIR "/traces/tiny-moe-top2");
  const auto mean_of = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  const double seen = mean_of(pair_excess(*trace));
  ScoreModel model = fit_score_model(*trace, "tiny");
  const TraceShape& shape = trace->shape();
  const auto generated = [&] {
    std::vector<double> excesses;
    for (std::uint64_t seed = 41; seed < 49; ++seed) {
      const auto made =
          recorded(model, Size{shape.steps, shape.ranks, shape.layers, shape.tokens}, seed);
      for (const double excess : pair_excess(*made)) excesses.push_back(excess);
    }
    return excesses;
  };
  const std::vector<double> with = generated();
  double scatter = 0;
  for (const double excess : with) {
    scatter += std::pow(excess - mean_of(with), 2) / static_cast<double>(with.size() - 1);
  }
  const double error = std::sqrt(
      scatter * (1.0 / static_cast<double>(shape.layers) + 1.0 / static_cast<double>(with.size())));
  INFO("trace " << seen << ", generated " << mean_of(with) << " +- " << error);
  CHECK(std::abs(mean_of(with) - seen) < 3 * error);
  CHECK(seen > 0.05);
  model.token_type = std::nullopt;
  CHECK(std::abs(mean_of(generated())) < 0.2 * seen);
}

TEST_CASE("what cannot tell of types says nothing of them") {
  CHECK_FALSE(
      fit_score_model(*recorded(known(8, 1, 0.5), Size{2, 2, 1, 64}, 1), "top1").token_type);
  CHECK_FALSE(
      fit_score_model(*recorded(known(4, 3, 0.5), Size{2, 2, 1, 64}, 1), "but one").token_type);
  const auto counts = Trace::of_counts("c", TraceShape{1, 1, 1, 6, 4, 2}, {3, 3, 3, 3});
  CHECK_FALSE(fit_score_model(*counts, "counts").token_type);
}
