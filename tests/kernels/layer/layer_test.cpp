#include "sim/routing/routers/router_name.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/host_layer.hpp"
#include "tests/support/layer_check.hpp"

using namespace moesim::kernels;
using namespace moesim::kernels::layer;
using moesim::kernels::routing::NormaliserRule;
using moesim::kernels::testing::check_layer;
using moesim::kernels::testing::HostGroup;
using moesim::kernels::testing::token_of;
using moesim::kernels::testing::weights_of;

namespace {

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

void check(const LayerProblem& problem, unsigned seed) {
  HostGroup group(problem, seed);
  group.run(Pass::forward);
  group.run(Pass::backward);
  check_layer(group);
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
  const ReferenceWeights weights = weights_of(group);
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
