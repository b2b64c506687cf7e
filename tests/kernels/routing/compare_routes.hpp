#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "kernels/routing/plan.hpp"

// One rank's routes from the kernels against the reference's.
namespace moesim::kernels::routing {

// The routes that the arrays of one rank hold, as RoutedGroup::routes() lists them.
inline std::vector<::moesim::routing::Route> listed(const RouterProblem& problem,
                                                    const RouterBuffers& buffers) {
  using ::moesim::routing::RouteKind;
  std::vector<::moesim::routing::Route> list;
  for (int token = 0; token < problem.tokens; ++token) {
    ::moesim::routing::Route route;
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

inline std::string text_of(const ::moesim::routing::Route& route) {
  return "rank " + std::to_string(route.rank) + " token " + std::to_string(route.token) +
         " choice " + std::to_string(route.choice) + " expert " + std::to_string(route.expert) +
         " slot " + std::to_string(route.slot) + " weight " + std::to_string(route.weight) + " g " +
         std::to_string(route.probability);
}

// Empty if the two lists agree to the bit, else the first difference.
inline std::string difference(const std::vector<::moesim::routing::Route>& kernels,
                              const std::vector<::moesim::routing::Route>& reference) {
  for (std::size_t at = 0; at < kernels.size() && at < reference.size(); ++at) {
    if (!(kernels[at] == reference[at])) {
      return "kernels: " + text_of(kernels[at]) + "; reference: " + text_of(reference[at]);
    }
  }
  if (kernels.size() == reference.size()) return {};
  return "kernels: " + std::to_string(kernels.size()) +
         " routes; reference: " + std::to_string(reference.size());
}

}  // namespace moesim::kernels::routing
