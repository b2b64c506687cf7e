#include "sim/routing/scores/score_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/scores/score_source.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

ScoreModel plain(const std::vector<double>& shares, int top_k) {
  ScoreModel model;
  model.experts = static_cast<int>(shares.size());
  model.top_k = top_k;
  model.popularity = {shares};
  return model;
}

std::vector<double> even(std::size_t experts) {
  return std::vector<double>(experts, 1.0 / static_cast<double>(experts));
}

ScoreSource source_of(const ScoreModel& model) {
  ScoreSource source;
  source.kind = ScoreSource::Kind::scores;
  source.model = std::make_shared<const ScoreModel>(model);
  return source;
}

struct TemporaryFile {
  std::string path;
  TemporaryFile(const std::string& name, const std::string& content) : path(name) {
    write_file_atomically(path, content);
  }
  ~TemporaryFile() { std::remove(path.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
};

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double covariance(const std::vector<double>& one, const std::vector<double>& other) {
  const double centre = mean_of(one);
  const double other_centre = mean_of(other);
  double sum = 0;
  for (std::size_t at = 0; at < one.size(); ++at) {
    sum += (one[at] - centre) * (other[at] - other_centre);
  }
  return sum / static_cast<double>(one.size());
}

}  // namespace

// Each expert's count is Binomial(tokens, k p).
TEST_CASE("tokens choose each expert with the probability of the model") {
  const std::vector<double> shares{0.3, 0.25, 0.2, 0.1, 0.1, 0.05};
  const int tokens = 100000;
  for (const int top_k : {1, 2, 3}) {
    const LogitSource logits(source_of(plain(shares, top_k)), LogitShape{6, 1, 1}, 5, 0, 0);
    const std::vector<float> rows = logits.rank_logits(0, tokens, tile_kernels(best_simd_level()));
    std::vector<double> counts(6, 0.0);
    for (int token = 0; token < tokens; ++token) {
      const auto row = rows.begin() + static_cast<std::ptrdiff_t>(token) * 6;
      std::vector<int> order{0, 1, 2, 3, 4, 5};
      std::sort(order.begin(), order.end(),
                [&](int one, int other) { return row[one] > row[other]; });
      for (int choice = 0; choice < top_k; ++choice)
        counts[static_cast<std::size_t>(order[choice])] += 1;
    }
    for (std::size_t expert = 0; expert < 6; ++expert) {
      const double inclusion = top_k * shares[expert];
      INFO("top " << top_k << ", expert " << expert);
      CHECK(std::abs(counts[expert] - tokens * inclusion) <
            4 * std::sqrt(tokens * inclusion * (1 - inclusion)) + 1e-4 * tokens);
    }
  }
}

// Two choices of weights p / (sum 1) are the pair e, f with probability
// p_e p_f (1 / (1 - p_e) + 1 / (1 - p_f)): one is first, the other the best of what is left. A
// token is of each kind as often. 200,000 tokens, 15 pairs and 6 loads, all binomial: within 4.5
// standard deviations.
TEST_CASE("types of tokens choose experts together and leave the loads") {
  const std::vector<double> shares{0.3, 0.25, 0.2, 0.1, 0.1, 0.05};
  ScoreModel model = plain(shares, 2);
  model.token_type = FittedValue{1, 0};
  const int tokens = 200000;
  std::vector<double> expected(36, 0.0);
  for (const std::vector<double>& weights :
       ScoreDraw(model, 6, 5, 0, 0).mixed_race().log_weights()) {
    std::vector<double> first;
    for (const double weight : weights) first.push_back(std::exp(weight));
    const double whole = std::accumulate(first.begin(), first.end(), 0.0);
    for (double& share : first) share /= whole;
    for (std::size_t pair = 0; pair < 36; ++pair) {
      const double one = first[pair / 6];
      const double other = first[pair % 6];
      expected[pair] += one * other * (1 / (1 - one) + 1 / (1 - other)) / token_types;
    }
  }
  const LogitSource logits(source_of(model), LogitShape{6, 1, 1}, 5, 0, 0);
  REQUIRE(logits.has_token_types());
  const std::vector<float> rows = logits.rank_logits(0, tokens, tile_kernels(best_simd_level()));
  CHECK(rows == logits.rank_logits(0, tokens, tile_kernels(SimdLevel::baseline)));
  std::vector<double> pairs(36, 0.0);
  std::vector<double> loads(6, 0.0);
  for (int token = 0; token < tokens; ++token) {
    const auto row = rows.begin() + static_cast<std::ptrdiff_t>(token) * 6;
    std::vector<std::size_t> order{0, 1, 2, 3, 4, 5};
    std::partial_sort(
        order.begin(), order.begin() + 2, order.end(), [&](std::size_t one, std::size_t other) {
          return row[static_cast<std::ptrdiff_t>(one)] > row[static_cast<std::ptrdiff_t>(other)];
        });
    ++pairs[std::max(order[0], order[1]) * 6 + std::min(order[0], order[1])];
    ++loads[order[0]];
    ++loads[order[1]];
  }
  const auto near = [&](double counted, double probability) {
    CHECK(std::abs(counted - tokens * probability) <
          4.5 * std::sqrt(tokens * probability * (1 - probability)) + 1e-4 * tokens);
  };
  double most_apart = 0;  // from what the same loads give without types
  const Race alone(shares, 2);
  double whole = 0;
  for (const double weight : alone.log_weights) whole += std::exp(weight);
  for (std::size_t one = 0; one < 6; ++one) {
    near(loads[one], 2 * shares[one]);
    for (std::size_t other = 0; other < one; ++other) {
      INFO("pair " << one << ", " << other);
      near(pairs[one * 6 + other], expected[one * 6 + other]);
      const double p = std::exp(alone.log_weights[one]) / whole;
      const double q = std::exp(alone.log_weights[other]) / whole;
      const double lift = pairs[one * 6 + other] / tokens / (p * q * (1 / (1 - p) + 1 / (1 - q)));
      most_apart = std::max(most_apart, std::abs(lift - 1));
    }
  }
  CHECK(most_apart > 0.3);
}

TEST_CASE("types of tokens keep the popularity of every GPU") {
  // Expert 0 is chosen by 0.9 of all tokens; few experts and GPUs that differ much are the hard
  // case.
  ScoreModel model = plain({0.3, 0.25, 0.2, 0.1, 0.1, 0.05}, 3);
  model.rank = FittedValue{0.3, 0};
  for (const double kind : {0.1, 1.0, 4.0}) {
    model.token_type = FittedValue{kind, 0};
    const ScoreDraw draw(model, 6, 3, 2, 1);
    const MixedRace race = draw.mixed_race();
    for (const std::uint32_t gpu : {0U, 3U, 7U}) {
      const std::vector<double> wanted = draw.gpu_inclusions(gpu);
      std::vector<double> mean(6, 0.0);
      for (const std::vector<double>& weights : race.moved_to(wanted)) {
        const std::vector<double> inclusions = race_inclusions(weights, 3);
        for (std::size_t expert = 0; expert < 6; ++expert) {
          mean[expert] += inclusions[expert] / token_types;
        }
      }
      for (std::size_t expert = 0; expert < 6; ++expert) {
        INFO("kind " << kind << ", GPU " << gpu << ", expert " << expert);
        CHECK(std::abs(mean[expert] - wanted[expert]) < 5e-3 * wanted[expert] + 1e-4);
      }
    }
    // What a kind favours lasts over the steps.
    CHECK(draw.type_terms() == ScoreDraw(model, 6, 3, 5, 1).type_terms());
  }
}

// Binomial loads of 100,000 tokens, 4.5 standard deviations beside the 0.5 % of the race.
TEST_CASE("tokens of types load the experts of a GPU as its popularity says") {
  ScoreModel model = plain({0.3, 0.25, 0.2, 0.1, 0.1, 0.05}, 3);
  model.rank = FittedValue{0.3, 0};
  model.token_type = FittedValue{1, 0};
  const LogitSource logits(source_of(model), LogitShape{6, 1, 8}, 3, 2, 1);
  const int tokens = 100000;
  const std::vector<float> rows = logits.rank_logits(7, tokens, tile_kernels(best_simd_level()));
  std::vector<double> loads(6, 0.0);
  for (int token = 0; token < tokens; ++token) {
    const auto row = rows.begin() + static_cast<std::ptrdiff_t>(token) * 6;
    for (std::ptrdiff_t expert = 0; expert < 6; ++expert) {
      const auto better = std::count_if(row, row + 6, [&](float v) { return v > row[expert]; });
      if (better < 3) ++loads[static_cast<std::size_t>(expert)];
    }
  }
  const std::vector<double> wanted = ScoreDraw(model, 6, 3, 2, 1).gpu_inclusions(7);
  for (std::size_t expert = 0; expert < 6; ++expert) {
    const double share = wanted[expert];
    INFO("expert " << expert);
    CHECK(std::abs(loads[expert] / tokens - share) <
          5e-3 * share + 4.5 * std::sqrt(share * (1 - share) / tokens));
  }
}

TEST_CASE("drift is a stationary AR(1) process over the replicas") {
  ScoreModel model = plain(even(64), 1);
  model.drift = FittedValue{0.09, 0};
  model.autocorrelation = FittedValue{0.8, 0};
  const auto logs = [&](std::uint32_t replica, std::uint32_t layer) {
    std::vector<double> values;
    const ScoreDraw draw(model, 64, 3, replica, layer);
    for (const double p : draw.inclusions()) {
      values.push_back(std::log(p));
    }
    return values;
  };
  for (const std::uint32_t replica : {0U, 5U, 1000U}) {  // later ones start from an earlier step
    for (const std::uint32_t lag : {0U, 1U, 4U}) {
      double sum = 0;
      const int layers = 60;
      for (std::uint32_t layer = 0; layer < layers; ++layer) {
        sum += covariance(logs(replica, layer), logs(replica + lag, layer));
      }
      // 0.09 * 0.8^lag, less 1/64 for the mean; 3840 pairs, whose products have a standard
      // deviation of at most sqrt 2 times the variance.
      const double expected = 0.09 * std::pow(0.8, lag) * 63 / 64;
      CHECK(std::abs(sum / layers - expected) < 4 * 0.09 * std::sqrt(2 / 3840.0));
    }
  }
}

TEST_CASE("ranks differ lastingly and afresh, each by its variance") {
  ScoreModel model = plain(even(64), 1);
  model.rank = FittedValue{0.04, 0};
  model.rank_step = FittedValue{0.02, 0};
  const auto own = [&](std::uint32_t replica, std::uint32_t layer, std::uint32_t gpu) {
    const ScoreDraw draw(model, 64, 3, replica, layer);
    return draw.race().moved_to(draw.gpu_inclusions(gpu));
  };
  double alone = 0;
  double lasting = 0;
  double between = 0;
  const int layers = 60;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    alone += covariance(own(2, layer, 5), own(2, layer, 5)) / layers;
    lasting += covariance(own(2, layer, 5), own(7, layer, 5)) / layers;
    between += covariance(own(2, layer, 5), own(2, layer, 6)) / layers;
  }
  const double error = 4 * 0.06 * std::sqrt(2 / 3840.0);
  CHECK(std::abs(alone - 0.06 * 63 / 64) < error);
  CHECK(std::abs(lasting - 0.04 * 63 / 64) < error);
  CHECK(std::abs(between) < error);
  const LogitSource logits(source_of(model), LogitShape{64, 4, 8}, 3, 2, 1);
  CHECK(logits.differs_between_ranks());
  for (std::size_t expert = 0; expert < 64; ++expert) {
    CHECK(logits.offsets_of(7)[expert] == Approx(own(2, 1, 7)[expert]));
  }
}

TEST_CASE("another number of experts takes the quantiles of log-popularity") {
  std::vector<double> shares;
  for (int expert = 0; expert < 32; ++expert) shares.push_back(std::exp(-0.1 * expert));
  const double whole = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= whole;
  const ScoreModel model = plain(shares, 2);
  CHECK(model.layer_popularity(0, 32, 1) == shares);  // each expert keeps its place
  CHECK(model.layer_popularity(7, 32, 1) == shares);  // layers wrap
  // A straight line of 32 steps of 0.1 becomes one of 16 steps of 0.2.
  std::vector<double> half = model.layer_popularity(0, 16, 1);
  CHECK(std::accumulate(half.begin(), half.end(), 0.0) == Approx(1));
  CHECK_FALSE(std::is_sorted(half.rbegin(), half.rend()));  // dealt in a drawn order
  CHECK(half != model.layer_popularity(1, 16, 1));
  CHECK(half != model.layer_popularity(0, 16, 2));
  std::sort(half.rbegin(), half.rend());
  for (std::size_t expert = 1; expert < 16; ++expert) {
    CHECK(std::log(half[expert - 1] / half[expert]) == Approx(0.2));
  }
  // Twice as many: steps of 0.05, but for the ends, beyond which nothing is known.
  std::vector<double> twice = model.layer_popularity(0, 64, 1);
  std::sort(twice.rbegin(), twice.rend());
  for (std::size_t expert = 2; expert < 63; ++expert) {
    CHECK(std::log(twice[expert - 1] / twice[expert]) == Approx(0.05));
  }
  CHECK(std::log(twice[0] / twice[1]) == Approx(0.025));
  CHECK_THROWS_WITH(ScoreDraw(model, 1, 1, 0, 0), ContainsSubstring("--experts 2 or more"));
}

TEST_CASE("models are told apart by their contents") {
  ScoreModel one = plain(even(8), 2);
  ScoreModel other = one;
  other.name = "elsewhere";
  CHECK(one.digest() == other.digest());
  other.rank = FittedValue{0.1, 0};
  CHECK(one.digest() != other.digest());
  other.rank = std::nullopt;
  other.token_type = FittedValue{0.1, 0};
  CHECK(one.digest() != other.digest());
}

TEST_CASE("a document of scores that is wrong says where") {
  const std::string good = plain(even(4), 2).text();
  CHECK_NOTHROW(ScoreModel::load(TemporaryFile("scores_good.json", good).path));
  std::string early = good;  // before there were types
  const std::string kind = ",\n    \"kind\": null";
  REQUIRE(early.find(kind) != std::string::npos);
  early.erase(early.find(kind), kind.size());
  CHECK_FALSE(ScoreModel::load(TemporaryFile("scores_early.json", early).path)->token_type);
  const auto refused = [&](const std::string& from, const std::string& to,
                           const std::string& part) {
    std::string text = good;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    const TemporaryFile file("scores_bad.json", text.replace(at, from.size(), to));
    CHECK_THROWS_WITH(parse_score_source("scores:" + file.path, "--routing"),
                      ContainsSubstring("scores_bad.json") && ContainsSubstring(part));
  };
  refused("moesim scores 1", "moesim scores 2", "/format");
  refused("[0.25, 0.25, 0.25, 0.25]", "[0.25, 0.25, 0.25]", "3 shares for 4 experts");
  refused("[0.25, 0.25, 0.25, 0.25]", "[0.25, 0.25, 0.25, 0.35]", "sum to 1.1");
  refused("[0.25, 0.25", "[0, 0.5", "/popularity/0/0");
  refused("\"top_k\": 2", "\"top_k\": 5", "/top_k");
  refused("\"spread\": {", "\"spread\": null, \"x\": {", "/variance");
  refused("\"autocorrelation\": null", "\"autocorrelation\": { \"value\": 1, \"error\": 0 }",
          "/autocorrelation");
  CHECK_THROWS_AS(parse_score_source("scores:absent.json", "--routing"), UsageError);
}
