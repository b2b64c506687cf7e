#include "sim/routing/scores/score_source.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/rules/router_config.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

ScoreSource source_of(const std::string& text) { return parse_score_source(text, "--routing"); }

struct TemporaryFile {
  std::string path;
  TemporaryFile(const std::string& name, const std::string& content) : path(name) {
    write_file_atomically(path, content);
  }
  ~TemporaryFile() { std::remove(path.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;  // a copy would remove the file twice
  TemporaryFile& operator=(const TemporaryFile&) = delete;
};

// The share of first choices per expert over many tokens.
std::vector<double> first_choice_shares(const LogitSource& source, int experts, int tokens) {
  const std::vector<float> logits = source.rank_logits(0, tokens, tile_kernels(best_simd_level()));
  std::vector<double> shares(static_cast<std::size_t>(experts), 0.0);
  for (int token = 0; token < tokens; ++token) {
    int best = 0;
    for (int expert = 1; expert < experts; ++expert) {
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>(token) * experts;
      if (row[expert] > row[best]) best = expert;
    }
    shares[static_cast<std::size_t>(best)] += 1.0 / tokens;
  }
  return shares;
}

}  // namespace

TEST_CASE("score sources are parsed, named and refused") {
  CHECK(source_of("gaussian:0.1").name() == "gaussian:0.1");
  CHECK(source_of("zipf:1.2").name() == "zipf:1.2");
  CHECK(source_of("dirichlet:0.5").name() == "dirichlet:0.5");
  CHECK(source_of("gaussian:0").parameter == 0);
  for (const char* text :
       {"", "gaussian", "gaussian:", "gaussian:-1", "gaussian:x", "zipf:nan", "dirichlet:0",
        "dirichlet:1e-7", "gaussian:1e9", "gaussian:inf", "uniform:1", "zipf:1 "}) {
    CHECK_THROWS_AS(source_of(text), UsageError);
  }
  CHECK_THROWS_WITH(source_of("uniform:1"), ContainsSubstring("gaussian:0.1"));
}

TEST_CASE("router names are parsed, named and refused") {
  CHECK(parse_router("top2+ir+fr", 0).name() == "top2+fr+ir");
  CHECK(parse_router("top1+ir@node", 0).name() == "top1+ir@node");
  CHECK(parse_router("topk+fr", 6).name() == "top6+fr");
  CHECK(parse_router("top2", 2).choices() == 2);
  CHECK(parse_router("top2+fr", 0).choices() == 3);
  CHECK(parse_router("top2+fr", 0).capacity_factor == Decimal(2));
  CHECK(parse_router("dense", 0).is_dense());
  for (const char* name :
       {"", "top", "top0", "topx", "top2+", "top2+zz", "top2+fr+fr", "top2+ir+ir@node", "topk",
        "dense+ir", "switch", "top-1", "TOP2", "top99999"}) {
    CHECK_THROWS_AS(parse_router(name, 0), UsageError);
  }
  CHECK_THROWS_WITH(parse_router("top2", 4), ContainsSubstring("--top-k"));
  CHECK_THROWS_WITH(parse_priority("best", "--priority"),
                    ContainsSubstring("token-max, own-score"));
  for (const auto priority :
       {Priority::token_max, Priority::own_score, Priority::position, Priority::random}) {
    CHECK(parse_priority(name_of(priority), "--priority") == priority);
  }
}

TEST_CASE("gaussian noise has the moments of a unit normal") {
  const LogitSource source(source_of("gaussian:0"), 7, 5, 0, 0);
  const int tokens = 100000;
  const std::vector<float> logits = source.rank_logits(3, tokens, tile_kernels(best_simd_level()));
  double mean = 0, square = 0, cube = 0, fourth = 0;
  for (const float value : logits) {
    mean += value;
    square += std::pow(value, 2);
    cube += std::pow(value, 3);
    fourth += std::pow(value, 4);
  }
  const double count = 7.0 * tokens;
  // Standard errors: 1, sqrt 2, sqrt 15, sqrt 96 over sqrt(count); four of them.
  CHECK(std::abs(mean / count) < 4 / std::sqrt(count));
  CHECK(std::abs(square / count - 1) < 4 * std::sqrt(2 / count));
  CHECK(std::abs(cube / count) < 4 * std::sqrt(15 / count));
  CHECK(std::abs(fourth / count - 3) < 4 * std::sqrt(96 / count));
}

TEST_CASE("normal draws fill their quantiles evenly") {
  const LogitSource source(source_of("gaussian:0"), 4, 6, 0, 0);
  const std::vector<float> logits = source.rank_logits(0, 100000, tile_kernels(best_simd_level()));
  std::vector<int> bins(100, 0);
  for (const float value : logits) {
    const double below = 0.5 * std::erfc(-value / std::sqrt(2.0));
    ++bins[std::min<std::size_t>(99, static_cast<std::size_t>(below * 100))];
  }
  double chi_square = 0;
  for (const int count : bins) chi_square += std::pow(count - 4000.0, 2) / 4000.0;
  CHECK(chi_square < 99 + 4 * std::sqrt(2 * 99.0));
  CHECK(chi_square > 99 - 4 * std::sqrt(2 * 99.0));
}

TEST_CASE("the bias is one per expert and layer, the same on all GPUs") {
  const ScoreSource source = source_of("gaussian:0.5");
  const LogitSource one(source, 8, 1, 0, 0);
  CHECK(one.offsets() == LogitSource(source, 8, 1, 0, 0).offsets());
  CHECK(one.offsets() != LogitSource(source, 8, 1, 0, 1).offsets());  // layer
  CHECK(one.offsets() != LogitSource(source, 8, 1, 1, 0).offsets());  // replica
  CHECK(one.offsets() != LogitSource(source, 8, 2, 0, 0).offsets());  // seed
  double square = 0;
  int count = 0;
  for (std::uint32_t layer = 0; layer < 500; ++layer) {
    const LogitSource of_layer(source, 8, 1, 0, layer);
    for (const float bias : of_layer.offsets()) {
      square += static_cast<double>(bias) * static_cast<double>(bias);
      ++count;
    }
  }
  CHECK(std::sqrt(square / count) == Approx(0.5).epsilon(0.05));
  const TileKernels& kernels = tile_kernels(best_simd_level());
  CHECK(one.rank_logits(0, 32, kernels) != one.rank_logits(1, 32, kernels));
}

TEST_CASE("Gumbel noise makes first choices exact draws from the popularity") {
  const int tokens = 200000;
  const LogitSource zipf(source_of("zipf:1"), 6, 3, 0, 2);
  std::vector<double> popularity;
  double whole = 0;
  for (const float offset : zipf.offsets()) {
    popularity.push_back(std::exp(offset));
    whole += popularity.back();
  }
  const std::vector<double> shares = first_choice_shares(zipf, 6, tokens);
  for (std::size_t expert = 0; expert < 6; ++expert) {
    const double p = popularity[expert] / whole;
    CHECK(std::abs(shares[expert] - p) < 4 * std::sqrt(p * (1 - p) / tokens));
  }
  std::sort(popularity.begin(), popularity.end());
  for (std::size_t place = 1; place <= 6; ++place) {  // rank^-1
    CHECK(popularity[6 - place] / popularity[5] ==
          Approx(1.0 / static_cast<double>(place)).epsilon(1e-5));
  }
}

TEST_CASE("zipf shuffles its experts from layer to layer") {
  std::map<std::ptrdiff_t, int> best;
  for (std::uint32_t layer = 0; layer < 600; ++layer) {
    const LogitSource source(source_of("zipf:1"), 6, 3, 0, layer);
    const auto& offsets = source.offsets();
    ++best[std::max_element(offsets.begin(), offsets.end()) - offsets.begin()];
  }
  CHECK(best.size() == 6);
  for (const auto& [expert, count] : best) CHECK(std::abs(count - 100) < 4 * 9.2);
}

TEST_CASE("dirichlet popularity has the variance of its parameter") {
  // Var of a share of Dirichlet(A, ..., A): (1/E)(1 - 1/E) / (E A + 1).
  const int experts = 5;
  for (const double a : {0.3, 1.0, 4.0}) {
    double square = 0;
    int count = 0;
    ScoreSource source = source_of("dirichlet:1");
    source.parameter = a;
    for (std::uint32_t layer = 0; layer < 4000; ++layer) {
      const LogitSource logits(source, experts, 9, 0, layer);
      double whole = 0;
      for (const float offset : logits.offsets()) whole += std::exp(offset);
      for (const float offset : logits.offsets()) {
        square += std::pow(std::exp(offset) / whole - 0.2, 2);
        ++count;
      }
    }
    CHECK(square / count == Approx(0.2 * 0.8 / (experts * a + 1)).epsilon(0.06));
  }
  ScoreSource tiny = source_of("dirichlet:0.001");  // shares that underflow are no NaN
  const LogitSource extreme(tiny, 8, 1, 0, 0);
  for (const float offset : extreme.offsets()) CHECK(offset <= 0);
}

TEST_CASE("counts are read, layers wrap, and a missing expert has none") {
  const TemporaryFile file("counts_test.csv",
                           "model,layer,expert,count\nx,3,0,30\nx,3,2,10\nx,7,1,5\n");
  const ScoreSource source = source_of("counts:" + file.path);
  REQUIRE(source.popularity->layers().size() == 2);
  CHECK(source.popularity->layers()[0] == std::vector<double>{0.75, 0, 0.25});
  CHECK(source.popularity->layers()[1] == std::vector<double>{0, 1, 0});
  const std::vector<double> shares =
      first_choice_shares(LogitSource(source, 3, 1, 0, 2), 3, 100000);
  CHECK(shares[0] == Approx(0.75).epsilon(0.01));
  CHECK(shares[1] == 0);
  CHECK(source.unlisted_experts == 2);  // of layer 7, which has a row of one
  for (const int experts : {2, 4}) {    // of another model
    CHECK_THROWS_WITH(LogitSource(source, experts, 1, 0, 0), ContainsSubstring("counts 3 experts"));
  }
}

TEST_CASE("counts that cannot be read say where") {
  const auto refused = [](const std::string& content, const std::string& part) {
    const TemporaryFile file("counts_bad.csv", content);
    CHECK_THROWS_WITH(source_of("counts:" + file.path), ContainsSubstring(part));
  };
  refused("layer,expert\n0,1\n", "count");
  refused("layer,expert,count\n0,1,x\n", "line 2, column count");
  refused("layer,expert,count\n0,1,-4\n", "line 2");
  refused("layer,expert,count\n0,1,4\n0,1,5\n", "twice");
  refused("layer,expert,count\n", "no rows");
  refused("layer,expert,count\n0,1,0\n", "all counts of layer 0");
  CHECK_THROWS_AS(source_of("counts:does_not_exist.csv"), UsageError);
}

TEST_CASE("logits are the same bits on every instruction set and in any part") {
  for (const char* text : {"gaussian:0.1", "zipf:1"}) {
    for (const int experts : {1, 3, 8, 10}) {
      const LogitSource source(source_of(text), experts, 77, 2, 1);
      const std::vector<float> expected =
          source.rank_logits(5, 1000, tile_kernels(SimdLevel::baseline));
      for (const SimdLevel level : available_simd_levels()) {
        INFO(name_of(level) << " " << text);
        CHECK(source.rank_logits(5, 1000, tile_kernels(level)) == expected);
      }
      // The first tokens do not depend on how many follow.
      const std::vector<float> few = source.rank_logits(5, 20, tile_kernels(best_simd_level()));
      CHECK(std::equal(few.begin(), few.end(), expected.begin()));
    }
  }
}

TEST_CASE("logits come from the project's Philox streams") {
  // Token 5 of rank 3: block 5 of its stream when four experts take one block.
  const LogitSource source(source_of("gaussian:0"), 4, 12345678901ULL, 65537, 6);
  const std::vector<float> logits = source.rank_logits(3, 16, tile_kernels(best_simd_level()));
  const PhiloxBlock block = philox_block({12345678901ULL, Purpose::logits, 65537, 6, 3}, 5);
  const auto uniform = [](std::uint32_t word) {
    return (static_cast<double>(word >> 1) + 0.5) * 0x1p-31;
  };
  const auto angle = [](std::uint32_t word) {
    return 2 * M_PI * static_cast<double>(static_cast<std::int32_t>(word)) * 0x1p-32;
  };
  for (std::size_t pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2 * std::log(uniform(block[2 * pair])));
    CHECK(logits[20 + 2 * pair] ==
          Approx(radius * std::cos(angle(block[2 * pair + 1]))).margin(2e-6));
    CHECK(logits[21 + 2 * pair] ==
          Approx(radius * std::sin(angle(block[2 * pair + 1]))).margin(2e-6));
  }
}

TEST_CASE("a wrong source is refused with the forms that the caller takes") {
  try {
    source_of("zipf:abc");
    FAIL("was taken");
  } catch (const NoScoreSource& refusal) {
    const std::string start = "--routing 'zipf:abc': 'abc' is not a number; choose one of ";
    CHECK(std::string(refusal.what()).starts_with(start + "gaussian:SIGMA, zipf:A, "));
    CHECK(refusal.of({{"zipf:A", "a meaning"}, {"balanced", ""}}).what() ==
          start + "zipf:A, balanced (gaussian:0.1, hot-expert:4, say)");
  }
}

TEST_CASE("counts are read from their file alone") {
  const TemporaryFile file("counts_alone.csv", "layer,expert,count\n0,0,1\n0,1,3\n");
  const ScoreSource source = load_counted_scores(file.path);
  CHECK(source.name() == "counts:counts_alone.csv");
  CHECK(source.popularity->layers() == std::vector<std::vector<double>>{{0.25, 0.75}});
  const TemporaryFile empty("counts_empty.csv", "layer,expert,count\n");
  CHECK_THROWS_WITH(load_counted_scores(empty.path), "counts_empty.csv: no rows of counts");
}
