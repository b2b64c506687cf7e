#include "sim/routing/counts/count_distribution.hpp"

#include <algorithm>
#include <boost/math/special_functions/erf.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "sim/routing/tokens/choice_shares.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

// Draws of 16 at a time, [draw, expert].
std::vector<std::int32_t> draw_many(const CountDistribution& law, int experts, int draws) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(draws * experts));
  std::vector<float> z(static_cast<std::size_t>(experts * tile_tokens));
  const std::vector<float> zero(static_cast<std::size_t>(experts), 0.0F);
  const PhiloxWords words = philox_words({7, Purpose::test_data, 0, 0, 0});
  for (int first = 0; first < draws; first += tile_tokens) {
    tile_kernels(best_simd_level())
        .gaussian({words, static_cast<std::uint64_t>(first)}, experts, zero.data(), z.data());
    law.draw(z.data(), tile_tokens, counts.data() + first * experts);
  }
  return counts;
}

}  // namespace

TEST_CASE("with Gumbel noise choices are those of successive sampling", "[routing]") {
  // P(first = e) = w_e / sum w; P(second = f) = sum over e != f of w_e / W * w_f / (W - w_e).
  const std::vector<double> weight = {0.5, 0.3, 0.15, 0.05};
  std::vector<float> offsets;
  for (const double w : weight) offsets.push_back(static_cast<float>(std::log(w)));
  const std::vector<double> shares = choice_shares(offsets, Noise::gumbel, 2);
  for (std::size_t expert = 0; expert < 4; ++expert) {
    CHECK(shares[expert] == Approx(weight[expert]).margin(1e-6));
    double second = 0;
    for (std::size_t first = 0; first < 4; ++first) {
      if (first != expert) second += weight[first] * weight[expert] / (1 - weight[first]);
    }
    CHECK(shares[4 + expert] == Approx(second).margin(1e-6));
  }
}

TEST_CASE("with normal noise the better of two wins by the difference of normals", "[routing]") {
  // a_0 - a_1 ~ N(0.7, 2), so P(first = 0) = Phi(0.7 / sqrt 2); an offset of -inf is never chosen.
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> offsets = {0.7F, -infinity, 0.0F};
  const std::vector<double> shares = choice_shares(offsets, Noise::normal, 2);
  const double first = 0.5 * std::erfc(-0.7 / 2);
  CHECK(shares[0] == Approx(first).margin(1e-7));
  CHECK(shares[2] == Approx(1 - first).margin(1e-7));
  CHECK(shares[3] == Approx(1 - first).margin(1e-7));
  CHECK(shares[1] == 0);
  CHECK(shares[4] == 0);
}

// The first choice is always the expert far above, the second is between the next two.
TEST_CASE("shares of experts that are far apart are those of the ones that noise reaches",
          "[routing]") {
  for (const Noise noise : {Noise::normal, Noise::gumbel}) {
    const std::vector<double> near = choice_shares(std::vector<float>{0.7F, 0.0F}, noise, 1);
    for (const float far : {100.0F, 1e4F, 1e6F}) {
      CAPTURE(far);
      const std::vector<float> offsets = {0.7F, -far, far, 0.0F, -2 * far};
      const std::vector<double> shares = choice_shares(offsets, noise, 2);
      const std::vector<double> expected = {0, 0, 1, 0, 0, near[0], 0, 0, near[1], 0};
      for (std::size_t at = 0; at < expected.size(); ++at) {
        CAPTURE(at);
        CHECK(shares[at] == Approx(expected[at]).margin(1e-6));
      }
    }
  }
}

TEST_CASE("binomial quantiles invert the distribution function", "[routing]") {
  // The count at z is the least n with P(count <= n) >= Phi(z). Above a variance of 9 an expansion
  // stands in for it: never further than the next count.
  for (const auto& [trials, share] :
       std::vector<std::pair<int, double>>{{20, 0.1}, {20, 0.9}, {400, 0.02}, {400, 0.3}}) {
    for (const double z : {-3.0, -1.3, -0.2, 0.0, 0.4, 1.1, 2.7}) {
      const double below = 0.5 * std::erfc(-z / std::sqrt(2.0));
      double sum = 0;
      int exact = -1;
      while (sum < below && exact < trials) {
        ++exact;
        sum += std::exp(std::lgamma(trials + 1.0) - std::lgamma(exact + 1.0) -
                        std::lgamma(trials - exact + 1.0) + exact * std::log(share) +
                        (trials - exact) * std::log1p(-share));
      }
      const int off = trials * share * (1 - share) < 9 ? 0 : 1;
      CHECK(std::abs(binomial_quantile(trials, share, z) - exact) <= off);
    }
  }
  CHECK(binomial_quantile(0, 0.5, 1) == 0);
  CHECK(binomial_quantile(5, 1, -9) == 5);
  CHECK(hypergeometric_quantile(10, 10, 4, -3) == 4);
  CHECK(hypergeometric_quantile(10, 3, 9, 5) == 3);
}

TEST_CASE("quantiles of one share are those of single ones, asked for again, too", "[routing]") {
  for (const double share : {0.0, 1e-4, 0.02, 0.3, 0.5, 0.7, 0.995, 1.0}) {
    BinomialQuantiles quantiles(share);
    for (const std::int32_t trials : {-1, 0, 3, 20, 3, 1023, 1024, 5000, 20, 60000}) {
      for (const double z : {-6.0, -1.3, 0.0, 0.4, 2.5, 9.0}) {
        CHECK(quantiles.at(trials, z) == binomial_quantile(trials, share, z));
      }
    }
  }
}

TEST_CASE("few marked among few drawn are counted exactly", "[routing]") {
  std::vector<double> log_factorials{0.0};
  for (int n = 1; n <= 60; ++n) log_factorials.push_back(log_factorials.back() + std::log(n));
  const auto choose = [](int from, int taken) {
    return std::tgamma(from + 1.0) / (std::tgamma(taken + 1.0) * std::tgamma(from - taken + 1.0));
  };
  const int cases[][3] = {{60, 3, 5}, {60, 57, 5}, {60, 30, 20}, {40, 38, 39}, {12, 6, 6}};
  for (const auto& [all, marked, drawn] : cases) {
    double below = 0;  // P(fewer than count), by the definition
    for (int count = std::max(0, drawn + marked - all); count <= std::min(marked, drawn); ++count) {
      const double here =
          choose(marked, count) * choose(all - marked, drawn - count) / choose(all, drawn);
      if (here > 1e-6) {
        const double z = M_SQRT2 * boost::math::erf_inv(2 * (below + here / 2) - 1);
        CHECK(hypergeometric_quantile(all, marked, drawn, z, log_factorials) == count);
      }
      below += here;
    }
    CHECK(below == Approx(1));
  }
}

TEST_CASE("whether a count is below a limit is what its quantile says", "[routing]") {
  std::vector<double> log_factorials(4097, 0.0);
  for (std::size_t n = 2; n < log_factorials.size(); ++n) {
    log_factorials[n] = log_factorials[n - 1] + std::log(static_cast<double>(n));
  }
  Stream stream({7, Purpose::test_data, 0, 0, 0});
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(stream.uniform() * static_cast<double>(end));
  };
  int kept = 0;
  int differing = 0;
  constexpr int cases = 20000;
  for (int at = 0; at < cases; ++at) {
    const std::int64_t all = 2 + below(4095);
    const std::int64_t marked = below(all + 1);
    const std::int64_t drawn = 1 + below(all);
    const double z = 2 * stream.normal();  // beyond what is usual, too
    const std::int64_t count = hypergeometric_quantile(all, marked, drawn, z, log_factorials);
    const std::int64_t mean = marked * drawn / all;
    for (const std::int64_t limit : {count - 1, count, count + 1, count + 40, count - 40,
                                     mean + below(100) - 50, 1 + below(drawn)}) {
      const bool found = hypergeometric_is_below(limit, all, marked, drawn, z, log_factorials);
      differing += found == (count < limit) ? 0 : 1;
      kept += found ? 1 : 0;
    }
  }
  CHECK(differing == 0);
  CHECK(kept > cases);
}

TEST_CASE("counts have binomial marginals and sum to all routes", "[routing]") {
  // Shares of k = 2: two experts of large counts, the others below the expansion's variance.
  std::vector<double> shares = {0.8, 0.5, 0.3, 0.2, 0.1, 0.05, 0.04, 0.01};
  const int experts = static_cast<int>(shares.size());
  const int draws = 16384;
  const std::int64_t tokens = 300;
  const CountDistribution law(shares, tokens, 2);
  const std::vector<std::int32_t> counts = draw_many(law, experts, draws);
  std::vector<double> sum(shares.size(), 0.0), squares(shares.size(), 0.0);
  for (std::size_t draw = 0; draw < static_cast<std::size_t>(draws); ++draw) {
    const auto row = counts.begin() + static_cast<std::ptrdiff_t>(draw) * experts;
    REQUIRE(std::accumulate(row, row + experts, 0) == 2 * tokens);
    for (std::size_t expert = 0; expert < shares.size(); ++expert) {
      sum[expert] += row[static_cast<std::ptrdiff_t>(expert)];
      squares[expert] += std::pow(row[static_cast<std::ptrdiff_t>(expert)], 2);
    }
  }
  for (std::size_t expert = 0; expert < shares.size(); ++expert) {
    const double mean = sum[expert] / draws;
    const double expected = static_cast<double>(tokens) * shares[expert];
    const double variance = expected * (1 - shares[expert]);
    // Four standard errors, plus 0.1 for the routes that make up the total.
    CHECK(mean == Approx(expected).margin(4 * std::sqrt(variance / draws) + 0.1));
    // The sample variance of as many draws has a relative error of sqrt(2 / draws) = 1.1 %; the
    // total's routes add a few hundredths of a count squared.
    CHECK(squares[expert] / draws - mean * mean ==
          Approx(variance).epsilon(4 * std::sqrt(2.0 / draws)).margin(0.15));
  }
}

TEST_CASE("counts of experts that are alike are correlated by -1 / (E - 1)", "[routing]") {
  const int experts = 8;
  const int draws = 16384;
  const std::vector<double> shares(experts, 3.0 / experts);
  const CountDistribution law(shares, 2048, 3);
  const std::vector<std::int32_t> counts = draw_many(law, experts, draws);
  const double mean = 2048 * 3.0 / experts;
  const double variance = mean * (1 - 3.0 / experts);
  double product = 0;
  for (std::size_t draw = 0; draw < static_cast<std::size_t>(draws); ++draw) {
    const std::int32_t* row = counts.data() + draw * experts;
    for (int other = 1; other < experts; ++other) product += (row[0] - mean) * (row[other] - mean);
  }
  // The seven covariances sum to minus the variance, whatever the draws: an exact sum, so the error
  // is that of the variance itself, 1.1 %.
  CHECK(product / draws == Approx(-variance).epsilon(0.045));
}

TEST_CASE("edges below a number are counted alike at every SIMD level", "[routing]") {
  // Numbers between, on and beyond the edges -2, -1.75, ..., 2, in each lane of a tile.
  std::vector<float> edges;
  for (int at = 0; at <= 16; ++at) edges.push_back(-2.0F + 0.25F * static_cast<float>(at));
  std::vector<float> z;
  for (int lane = 0; lane < tile_tokens; ++lane)
    z.push_back(-2.5F + 0.33F * static_cast<float>(lane));
  z[3] = -1.75F;  // on an edge, which is not below it
  z[5] = -std::numeric_limits<float>::infinity();
  z[7] = std::numeric_limits<float>::infinity();
  for (const SimdLevel level : available_simd_levels()) {
    std::vector<std::int32_t> counts(tile_tokens, -1);
    edge_count_kernels(level).count_edges(z.data(), edges.data(), edges.size(), 40, counts.data());
    for (std::size_t lane = 0; lane < z.size(); ++lane) {
      const auto below =
          std::count_if(edges.begin(), edges.end(), [&](float edge) { return edge < z[lane]; });
      CHECK(counts[lane] == 40 + below);
    }
    CHECK(counts[3] == 41);
    CHECK(counts[5] == 40);
    CHECK(counts[7] == 57);
  }
}
