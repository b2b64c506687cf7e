#include "sim/routing/tokens/losses.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/routing/tokens/gradient.hpp"
#include "sim/routing/tokens/softmax.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

std::vector<double> softmax_of(const std::vector<double>& logits) {
  double sum = 0;
  std::vector<double> g;
  for (const double logit : logits) sum += std::exp(logit);
  for (const double logit : logits) g.push_back(std::exp(logit) / sum);
  return g;
}

struct Row {
  int expert;
  double times;  // 1 for a kept route, s for an IR row
};

// L = <c, o> with o = sum m_j E_j / G, E_j(x) one number each, c = 1: u_j = E_j. `frozen` > 0 is G.
double loss(const std::vector<double>& logits, const std::vector<Row>& rows,
            const std::vector<double>& outputs, double frozen) {
  const std::vector<double> g = softmax_of(logits);
  double sum = 0, whole = 0;
  for (const Row& row : rows) {
    const double mass = row.times * g[static_cast<std::size_t>(row.expert)];
    sum += mass * outputs[static_cast<std::size_t>(row.expert)];
    whole += mass;
  }
  return sum / (frozen > 0 ? frozen : whole);
}

void check_gradient(const std::vector<Row>& rows, Normaliser normaliser) {
  const std::vector<double> logits = {0.3, -1.2, 0.9, 0.1, -0.4};
  const std::vector<double> outputs = {1.5, -0.7, 0.4, 2.0, -1.1};
  const std::vector<double> g = softmax_of(logits);
  std::vector<ProcessedRow> processed;
  double whole = 0;
  for (const Row& row : rows) {
    const auto at = static_cast<std::size_t>(row.expert);
    processed.push_back({row.expert, row.times * g[at], outputs[at]});
    whole += row.times * g[at];
  }
  const bool straight = normaliser == Normaliser::straight_through;
  const std::vector<double> gradient = logit_gradient(g, processed, normaliser);
  double sum = 0;
  for (std::size_t expert = 0; expert < logits.size(); ++expert) {
    const double step = 1e-5;
    std::vector<double> up = logits, down = logits;
    up[expert] += step;
    down[expert] -= step;
    const double frozen = straight ? whole : 0;
    const double difference =
        (loss(up, rows, outputs, frozen) - loss(down, rows, outputs, frozen)) / (2 * step);
    CHECK(gradient[expert] == Approx(difference).margin(1e-9));
    sum += gradient[expert];
  }
  CHECK(sum == Approx(0).margin(1e-12));
}

}  // namespace

TEST_CASE("the gradient through the combine is that of finite differences") {
  for (const auto normaliser : {Normaliser::differentiated, Normaliser::straight_through}) {
    check_gradient({{2, 1}, {0, 1}}, normaliser);          // two kept routes
    check_gradient({{2, 1}}, normaliser);                  // one
    check_gradient({{2, 1}, {4, 1}}, normaliser);          // one kept, IR once
    check_gradient({{4, 2}}, normaliser);                  // IR alone, dropped twice
    check_gradient({{2, 1}, {0, 1}, {2, 1}}, normaliser);  // IR repeats a kept expert
  }
}

TEST_CASE("one row teaches nothing through its own normaliser, and everything straight through") {
  const std::vector<double> g = {0.5, 0.3, 0.2};
  const std::vector<ProcessedRow> one = {{0, 0.5, 2.0}};
  for (const double slope : logit_gradient(g, one, Normaliser::differentiated)) CHECK(slope == 0);
  // w = 1, v = u = 2: u - g_0 v, then -g_l v for the experts that did not work.
  const std::vector<double> straight = logit_gradient(g, one, Normaliser::straight_through);
  CHECK(straight[0] == Approx(2 - 0.5 * 2));
  CHECK(straight[1] == Approx(-0.3 * 2));
  CHECK(straight[2] == Approx(-0.2 * 2));
  for (const double slope : logit_gradient(g, {}, Normaliser::straight_through)) CHECK(slope == 0);
}

TEST_CASE("balance loss is E sum f P, z-loss the mean square of logsumexp") {
  // Two tokens, two experts, logits (ln 3, 0) and (0, ln 3): f = P = 1/2 each, loss 1.
  const float l3 = std::log(3.0F);
  const std::vector<float> balanced = {l3, 0, 0, l3};
  AuxiliaryLosses losses = auxiliary_losses(balanced, 2, 2);
  CHECK(losses.balance == Approx(1));
  CHECK(losses.z == Approx(std::log(4.0) * std::log(4.0)));
  // Both to expert 0 with g = 3/4: 2 * (1 * 3/4) = 1.5.
  const std::vector<float> skewed = {l3, 0, l3, 0};
  losses = auxiliary_losses(skewed, 2, 2);
  CHECK(losses.balance == Approx(1.5));
  // A constant on all logits moves logsumexp by it and nothing else.
  const std::vector<float> shifted = {l3 + 2, 2, l3 + 2, 2};
  CHECK(auxiliary_losses(shifted, 2, 2).balance == Approx(1.5));
  CHECK(auxiliary_losses(shifted, 2, 2).z == Approx(std::pow(std::log(4.0) + 2, 2)));
  CHECK(auxiliary_losses({}, 0, 2).z == 0);
  // g = (1/2, 1/4, 1/4) twice and (1/4, 1/4, 1/2), k = 2; of equal logits the lower expert. First
  // choices 0, 0, 2: f = (2/3, 0, 1/3); all choices 0, 1, 0, 1, 2, 0: (3, 2, 1) / 6.
  // P = (5, 3, 4) / 12: losses 3 (10 + 4) / 36 and 3 (15 + 6 + 4) / 72.
  const float l2 = std::log(2.0F);
  const std::vector<float> three = {l2, 0, 0, l2, 0, 0, 0, 0, l2};
  losses = auxiliary_losses(three, 3, 3, 0, 2);
  CHECK(losses.balance == Approx(3.0 * 14 / 36));
  CHECK(losses.balance_all == Approx(3.0 * 25 / 72));
  // Ranks one after another are one batch.
  AuxiliarySums sums(3, 2);
  sums.add(std::span<const float>(three).first(3), 1, 0);
  sums.add(std::span<const float>(three).subspan(3), 2, 1);
  CHECK(sums.losses().balance_all == Approx(3.0 * 25 / 72));
  const std::vector<float> bad = {0, std::numeric_limits<float>::quiet_NaN()};
  CHECK_THROWS_WITH(auxiliary_losses(bad, 1, 2, 3), ContainsSubstring("rank 3, token 0"));
}

TEST_CASE("exp stays within its error and is exact at its ends") {
  CHECK(exp_nonpositive(0.0F) == 1.0F);
  CHECK(exp_nonpositive(-std::numeric_limits<float>::infinity()) == 0.0F);
  CHECK(exp_nonpositive(-1000.0F) == 0.0F);
  CHECK(std::isnan(exp_nonpositive(std::numeric_limits<float>::quiet_NaN())));
  double worst = 0;
  for (int step = 0; step < 870000; ++step) {
    const float x = -static_cast<float>(step) * 1e-4F;
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(exp_nonpositive(x) / exact - 1) / (1 - x));
  }
  CHECK(worst < 1.6e-7);
  CHECK(worst > 1e-8);  // the scan does compare
}

TEST_CASE("softmax sums to one and does not mind a constant") {
  const std::vector<float> logits = {1, -2, 0.5F, 3, 0, -8, 2};
  std::vector<float> shifted;
  for (const float logit : logits) shifted.push_back(logit + 64);  // exact for these values
  std::vector<float> one(7), other(7), scratch(7);
  REQUIRE(softmax(logits.data(), 7, one.data(), scratch.data()));
  REQUIRE(softmax(shifted.data(), 7, other.data(), scratch.data()));
  CHECK(one == other);
  double sum = 0;
  for (const float g : one) sum += g;
  CHECK(sum == Approx(1).epsilon(1e-6));
  for (const int count : {1, 2, 3, 4, 5, 8, 13, 64, 100}) {
    std::vector<float> values(static_cast<std::size_t>(count), 1.0F);
    CHECK(folded_sum(values.data(), count) == static_cast<float>(count));
  }
}
