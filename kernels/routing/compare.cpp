#include "kernels/routing/compare.hpp"

#include <fmt/format.h>

namespace moesim::kernels::routing {
namespace {

using ::moesim::routing::Route;
using ::moesim::routing::RouteKind;

std::string text_of(const Route& route) {
  return fmt::format("rank {} token {} choice {} expert {} slot {} weight {} g {}", route.rank,
                     route.token, route.choice, route.expert, route.slot, route.weight,
                     route.probability);
}

}  // namespace

std::vector<Route> listed(const RouterProblem& problem, const RouterBuffers& buffers) {
  std::vector<Route> list;
  for (int token = 0; token < problem.tokens; ++token) {
    Route route;
    route.rank = problem.rank;
    route.token = token;
    for (int choice = 0; choice < problem.choices(); ++choice) {
      const std::int64_t at = choice * problem.stride() + token;
      route.choice = choice;
      route.expert = buffers.expert[at];
      route.slot = buffers.slot[at];
      route.weight = buffers.weight[at];
      route.probability = buffers.probability[at];
      route.kind = choice < problem.config.top_k ? RouteKind::primary : RouteKind::fill;
      list.push_back(route);
    }
    if (!problem.rectified() || buffers.ir_expert[token] == no_expert) continue;
    route.choice = problem.choices();
    route.expert = buffers.ir_expert[token];
    route.slot = ::moesim::routing::slot_ir;
    route.weight = buffers.ir_weight[token];
    route.probability = buffers.ir_probability[token];
    route.kind = RouteKind::ir;
    list.push_back(route);
  }
  return list;
}

std::string difference(const std::vector<Route>& kernels, const std::vector<Route>& reference) {
  for (std::size_t at = 0; at < kernels.size() && at < reference.size(); ++at) {
    if (!(kernels[at] == reference[at])) {
      return fmt::format("kernels: {}; reference: {}", text_of(kernels[at]),
                         text_of(reference[at]));
    }
  }
  if (kernels.size() == reference.size()) return {};
  return fmt::format("kernels: {} routes; reference: {}", kernels.size(), reference.size());
}

std::string wrong_ir_rows(const RouterProblem& problem, const RouterBuffers& buffers) {
  if (!problem.rectified()) return {};
  const auto local = problem.local();
  std::int32_t row = 0;
  for (int expert = local.first; expert < local.last; ++expert) {
    if (buffers.ir_begin[expert - local.first] != row) {
      return fmt::format("the IR rows of expert {} begin at {}, not at {}", expert,
                         buffers.ir_begin[expert - local.first], row);
    }
    for (int token = 0; token < problem.tokens; ++token) {
      if (buffers.ir_expert[token] != expert) continue;
      if (buffers.ir_row[token] != row || buffers.ir_row_token[row] != token) {
        return fmt::format("token {} has IR row {} (of token {}), not {}", token,
                           buffers.ir_row[token], buffers.ir_row_token[row], row);
      }
      ++row;
    }
  }
  if (buffers.ir_begin[local.last - local.first] != row) {
    return fmt::format("{} IR rows are counted, {} are there",
                       buffers.ir_begin[local.last - local.first], row);
  }
  for (int token = 0; token < problem.tokens; ++token) {
    if (buffers.ir_expert[token] == no_expert && buffers.ir_row[token] != -1) {
      return fmt::format("token {} has IR row {} and no IR expert", token, buffers.ir_row[token]);
    }
  }
  return {};
}

}  // namespace moesim::kernels::routing
