#include <cmath>
#include <random>

#include "kernels/routing/backward.cuh"
#include "sim/base/error.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/tokens/gradient.hpp"
#include "tests/kernels/routing/kernel_router.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::kernels::routing;

namespace {

struct Case {
  std::unique_ptr<KernelRank> rank;
  std::vector<float> upstream, ir_upstream, gradient;
};

void run_backward(const BackwardArguments& in) {
  with_layout(in.experts, [&](auto lanes, auto values) {
    constexpr int width = decltype(lanes)::value;
    kernels::simt::launch(
        {blocks_for(std::int64_t{in.tokens} * width, backward_threads), backward_threads, 0},
        [&] { route_backward<width, decltype(values)::value>(in); });
  });
}

Case differentiate(const std::string& name, int experts, int tokens, NormaliserRule rule,
                   unsigned seed) {
  std::mt19937 engine(seed);
  const auto uniform = [&] { return static_cast<float>(engine()) * 0x1p-31F - 1.0F; };
  std::vector<float> logits(static_cast<std::size_t>(experts * tokens));
  for (float& value : logits) value = 2 * uniform();
  routing::RouterConfig config = routing::parse_router(name, 0);
  config.capacity_factor = Decimal::parse("0.8", "factor");
  Case made;
  made.rank = std::move(route_by_kernels(config, experts, {logits})[0]);
  const RouterProblem& problem = made.rank->problem;
  made.upstream.resize(static_cast<std::size_t>(problem.stride() * problem.choices()));
  made.ir_upstream.resize(static_cast<std::size_t>(tokens));
  for (float& value : made.upstream) value = uniform();
  for (float& value : made.ir_upstream) value = uniform();
  made.gradient.assign(logits.size(), 77.0F);
  run_backward(backward_arguments(problem, made.rank->buffers, made.rank->logits.data(),
                                  made.upstream.data(), made.ir_upstream.data(), rule,
                                  made.gradient.data()));
  return made;
}

// The rows that processed a token, with g of all experts, in double precision.
struct TokenRows {
  std::vector<double> g;
  std::vector<routing::ProcessedRow> rows;
};

TokenRows rows_of(const Case& made, int token) {
  const RouterProblem& problem = made.rank->problem;
  const RouterBuffers& at = made.rank->buffers;
  const float* logits = made.rank->logits.data() + token * problem.experts;
  TokenRows result;
  double sum = 0;
  for (int expert = 0; expert < problem.experts; ++expert) {
    result.g.push_back(std::exp(static_cast<double>(logits[expert])));
    sum += result.g.back();
  }
  for (double& g : result.g) g /= sum;
  int kept = 0;
  for (int choice = 0; choice < problem.choices(); ++choice) {
    const std::int64_t place = choice * problem.stride() + token;
    if (at.slot[place] < 0) continue;
    ++kept;
    result.rows.push_back({at.expert[place], result.g[at.expert[place]],
                           made.upstream[static_cast<std::size_t>(place)]});
  }
  if (problem.rectified() && at.ir_expert[token] != no_expert) {
    result.rows.push_back({at.ir_expert[token],
                           (problem.config.top_k - kept) * result.g[at.ir_expert[token]],
                           made.ir_upstream[static_cast<std::size_t>(token)]});
  }
  return result;
}

}  // namespace

TEST_CASE("the backward kernel gives the reference's gradient", "[slow]") {
  int rows_seen[4] = {};
  for (const int experts : {4, 8, 16, 64, 100}) {
    for (const char* name : {"top1", "top2", "top2+ir", "top2+fr+ir", "top1+fr"}) {
      for (const auto rule : {NormaliserRule::differentiated, NormaliserRule::straight_through}) {
        const Case made = differentiate(name, experts, 60, rule, static_cast<unsigned>(experts));
        const auto mode = rule == NormaliserRule::differentiated
                              ? routing::Normaliser::differentiated
                              : routing::Normaliser::straight_through;
        for (int token = 0; token < 60; ++token) {
          const TokenRows rows = rows_of(made, token);
          const auto expected = routing::logit_gradient(rows.g, rows.rows, mode);
          ++rows_seen[rows.rows.size()];
          for (int expert = 0; expert < experts; ++expert) {
            // Values are at most 2, sums of a few products of weights with 1e-6 relative error.
            REQUIRE(static_cast<double>(
                        made.gradient[static_cast<std::size_t>(token * experts + expert)]) ==
                    Approx(expected[static_cast<std::size_t>(expert)]).margin(4e-6));
          }
        }
      }
    }
  }
  for (const int count : {rows_seen[0], rows_seen[1], rows_seen[2]}) CHECK(count > 50);
}

TEST_CASE("the backward kernel agrees with finite differences, G free or frozen") {
  const int experts = 8;
  const double step = 1e-6;
  for (const auto rule : {NormaliserRule::differentiated, NormaliserRule::straight_through}) {
    const Case made = differentiate("top2+fr+ir", experts, 40, rule, 9);
    for (int token = 0; token < 40; ++token) {
      const TokenRows rows = rows_of(made, token);
      if (rows.rows.empty()) continue;
      double frozen = 0;
      for (const auto& row : rows.rows) frozen += row.mass;
      for (int expert = 0; expert < experts; ++expert) {
        // L = sum_j m_j u_j / G; logit `expert` moves by delta: g_j changes to g_j e^(d_jl delta)
        // over 1 + g_l (e^delta - 1).
        const auto loss = [&](double delta) {
          const double whole = 1 + rows.g[static_cast<std::size_t>(expert)] * std::expm1(delta);
          double sum = 0;
          double mass = 0;
          for (const auto& row : rows.rows) {
            const double m = row.mass * (row.expert == expert ? std::exp(delta) : 1.0) / whole;
            sum += m * row.upstream;
            mass += m;
          }
          return sum / (rule == NormaliserRule::straight_through ? frozen : mass);
        };
        const double expected = (loss(step) - loss(-step)) / (2 * step);
        const auto at = static_cast<std::size_t>(token * experts + expert);
        REQUIRE(static_cast<double>(made.gradient[at]) == Approx(expected).margin(1e-5));
      }
    }
  }
}

TEST_CASE("other weights have no backward") {
  RouterProblem problem;
  problem.config.weights = routing::Weights::raw;
  problem.experts = 8;
  CHECK_THROWS_AS(backward_arguments(problem, {}, nullptr, nullptr, nullptr,
                                     NormaliserRule::straight_through, nullptr),
                  UsageError);
}
