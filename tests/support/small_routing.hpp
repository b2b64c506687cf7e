#pragma once

#include <string>
#include <vector>

#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "tests/support/random_logits.hpp"

namespace moesim::test {

// A router by its name, k 2 where the name says none.
inline routing::RouterConfig make(const std::string& name, int top_k = 0,
                                  const char* factor = nullptr) {
  routing::RouterConfig config = routing::parse_router(name, top_k, 2);
  if (factor != nullptr) config.capacity_factor = Decimal::parse(factor, "factor");
  return config;
}

inline routing::RoutedGroup route(const routing::RouterConfig& config, int experts,
                                  const Logits& logits,
                                  const routing::RouterContext& context = {}) {
  return routing::route_group(config, experts, spans(logits, experts), context);
}

// The experts of a token's kept routes, best first.
inline std::vector<int> kept_experts(const routing::RoutedGroup& group, int rank, int token) {
  std::vector<int> experts;
  for (const routing::Route& one : group.routes()) {
    if (one.rank == rank && one.token == token && one.slot >= 0) experts.push_back(one.expert);
  }
  return experts;
}

// 8 GPUs in two groups of 4, 8 experts, 2 layers of 1,024 tokens per GPU.
inline routing::RoutingJob small_job(const std::string& router, int top_k = 0) {
  routing::RoutingJob job;
  job.router = make(router, top_k);
  job.scores = routing::parse_score_source("gaussian:0.3", "--routing");
  job.experts = 8;
  job.gpus = 8;
  job.expert_parallel = 4;
  job.gpus_per_domain = 2;
  job.tokens_per_gpu = 1024;
  job.layers = 2;
  return job;
}

}  // namespace moesim::test
