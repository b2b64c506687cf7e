#include <cmath>

#include "sim/routing/routers/router_name.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/host_layer.hpp"

using namespace moesim::kernels;
using namespace moesim::kernels::layer;
using moesim::kernels::routing::NormaliserRule;
using moesim::kernels::testing::HostGroup;

namespace {

using Values = std::vector<double>;

LayerProblem make(const std::string& router, const std::string& factor, Dispatch dispatch,
                  int experts, int ranks) {
  LayerProblem problem;
  problem.router.config = ::moesim::routing::parse_router(router, 0);
  problem.router.config.capacity_factor = moesim::Decimal::parse(factor, "factor");
  problem.router.tokens = 24;
  problem.router.experts = experts;
  problem.router.ranks = ranks;
  problem.hidden = 32;
  problem.ffn = 24;
  problem.dispatch = dispatch;
  return problem;
}

Values slice(const Bfloat16* from, std::size_t count) {
  Values values;
  for (std::size_t at = 0; at < count; ++at) {
    values.push_back(static_cast<double>(to_float(from[at])));
  }
  return values;
}

// |got - wanted| over |wanted| as vectors. On its way a result is rounded to bf16 about six times
// (hidden, activated, row, out; as many backward, or a mask's weights), each by 0.0016 of its size
// root mean square: 0.004 together.
double error_of(const Values& got, const Values& wanted) {
  double off = 0, size = 0;
  for (std::size_t at = 0; at < wanted.size(); ++at) {
    off += std::pow(got[at] - wanted[at], 2);
    size += wanted[at] * wanted[at];
  }
  return off == 0 ? 0 : std::sqrt(off / size);
}
constexpr double tolerance = 0.02;

double norm(const Values& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

void add_outer(Values& to, std::size_t offset, const Values& left, const Values& right) {
  for (std::size_t row = 0; row < left.size(); ++row) {
    for (std::size_t column = 0; column < right.size(); ++column) {
      to[offset + row * right.size() + column] += left[row] * right[column];
    }
  }
}

// What all ranks' tokens leave in the weights' gradients.
struct WeightGradients {
  std::vector<Values> up, down;  // [expert]
  std::vector<Values> gate;      // [rank]
};

ReferenceToken token_of(const HostGroup& group, int rank, int token) {
  const LayerProblem& problem = group.at(rank).plan().problem;
  const auto hidden = static_cast<std::size_t>(problem.hidden);
  const std::size_t begin = hidden * static_cast<std::size_t>(token);
  return {slice(group.buffer(rank, Buffer::x) + begin, hidden),
          slice(group.buffer(rank, Buffer::out_gradient) + begin, hidden),
          rows_of_token(problem.router, group.at(rank).router(), token)};
}

void check_tokens(const HostGroup& group, int rank, WeightGradients& sums) {
  const LayerProblem& problem = group.at(rank).plan().problem;
  const ReferenceWeights weights = group.weights();
  const auto hidden = static_cast<std::size_t>(problem.hidden);
  const auto experts = static_cast<std::size_t>(problem.router.experts);
  for (int token = 0; token < problem.router.tokens; ++token) {
    INFO("rank " << rank << " token " << token);
    const ReferenceToken in = token_of(group, rank, token);
    const ReferenceResult expected =
        reference_token(weights, in, problem.residual, problem.normaliser);
    const auto at = static_cast<std::size_t>(token);
    REQUIRE(error_of(slice(group.buffer(rank, Buffer::out) + at * hidden, hidden), expected.out) <
            tolerance);
    REQUIRE(error_of(slice(group.buffer(rank, Buffer::x_gradient) + at * hidden, hidden),
                     expected.x_gradient) < tolerance);
    const float* logits = group.buffer<float>(rank, Buffer::logit_gradient) + at * experts;
    // u = <dL/do, row> may cancel: rows that are off by 0.003 of their size at random leave it off
    // by 0.003 / sqrt(32) |dL/do| |row| (root mean square); seven times that.
    double size = 0;
    for (const Values& row : expected.output) size = std::max(size, norm(row));
    size *= norm(in.out_gradient);
    for (std::size_t expert = 0; expert < experts; ++expert) {
      REQUIRE(std::abs(static_cast<double>(logits[expert]) - expected.logit_gradient[expert]) <=
              0.004 * size);
    }
    add_outer(sums.gate[static_cast<std::size_t>(rank)], 0, expected.logit_gradient, in.x);
    for (std::size_t row = 0; row < in.rows.size(); ++row) {
      const auto expert = static_cast<std::size_t>(in.rows[row].expert);
      add_outer(sums.up[expert], 0, expected.hidden_gradient[row], in.x);
      add_outer(sums.down[expert], 0, expected.output_gradient[row], expected.activated[row]);
    }
  }
}

void check(const LayerProblem& problem, unsigned seed) {
  HostGroup group(problem, seed);
  group.run(Pass::forward);
  group.run(Pass::backward);
  const auto one = static_cast<std::size_t>(problem.hidden) * static_cast<std::size_t>(problem.ffn);
  const auto experts = static_cast<std::size_t>(problem.router.experts);
  const auto gates = experts * static_cast<std::size_t>(problem.hidden);
  WeightGradients sums{
      std::vector<Values>(experts, Values(2 * one, 0)),
      std::vector<Values>(experts, Values(one, 0)),
      std::vector<Values>(static_cast<std::size_t>(group.ranks()), Values(gates, 0))};
  for (int rank = 0; rank < group.ranks(); ++rank) check_tokens(group, rank, sums);
  for (int rank = 0; rank < group.ranks(); ++rank) {
    const float* gate = group.buffer<float>(rank, Buffer::gate_weight_gradient);
    CHECK(error_of(Values(gate, gate + gates), sums.gate[static_cast<std::size_t>(rank)]) <
          2 * tolerance);
  }
  for (std::size_t expert = 0; expert < experts; ++expert) {
    const auto local = static_cast<std::size_t>(problem.local_experts());
    const int rank = static_cast<int>(expert / local);
    INFO("expert " << expert);
    CHECK(error_of(slice(group.buffer(rank, Buffer::up_weight_gradient) + expert % local * 2 * one,
                         2 * one),
                   sums.up[expert]) < tolerance);
    CHECK(error_of(
              slice(group.buffer(rank, Buffer::down_weight_gradient) + expert % local * one, one),
              sums.down[expert]) < tolerance);
  }
}

}  // namespace

TEST_CASE("the layer's results and gradients are those of the fp64 reference", "[slow]") {
  unsigned seed = 1;
  for (const Dispatch dispatch : {Dispatch::index, Dispatch::einsum}) {
    for (const char* router : {"top1", "top2", "top2+fr", "top1+ir", "top2+ir", "top2+fr+ir"}) {
      for (const char* factor : {"0.6", "2"}) {
        for (const int ranks : {1, 2, 4}) {
          LayerProblem problem = make(router, factor, dispatch, 4, ranks);
          // C = 4 or 12: E C is a whole number of 16-byte pieces.
          problem.residual = seed % 2 == 0;
          problem.grouped = seed % 3 != 0;
          if (seed % 5 == 0) problem.normaliser = NormaliserRule::differentiated;
          INFO(router << " CF " << factor << " " << name_of(dispatch) << " ranks " << ranks);
          check(problem, seed++);
        }
      }
    }
  }
}

TEST_CASE("the reference's gradients are finite differences of its loss") {
  HostGroup group(make("top2+fr+ir", "0.6", Dispatch::index, 4, 1), 9);
  group.run(Pass::forward);
  const ReferenceWeights weights = group.weights();
  const double step = 1e-5;
  for (const auto rule : {NormaliserRule::differentiated, NormaliserRule::straight_through}) {
    for (const bool residual : {false, true}) {
      for (int token = 0; token < 24; ++token) {
        ReferenceToken in = token_of(group, 0, token);
        const ReferenceResult at = reference_token(weights, in, residual, rule);
        const std::optional<double> frozen =
            rule == NormaliserRule::straight_through ? std::optional(at.mass) : std::nullopt;
        for (std::size_t column = 0; column < in.x.size(); ++column) {
          const double x = in.x[column];
          in.x[column] = x + step;
          const double above = reference_loss(weights, in, residual, frozen);
          in.x[column] = x - step;
          const double below = reference_loss(weights, in, residual, frozen);
          in.x[column] = x;
          // Central differences: step^2 times third derivatives of sums of some hundred terms.
          REQUIRE(at.x_gradient[column] ==
                  Approx((above - below) / (2 * step)).epsilon(1e-6).margin(1e-6));
        }
      }
    }
  }
}
