#include "kernels/measure/suites/routing.hpp"

#include <array>
#include <cstdint>

#include "sim/base/units.hpp"

namespace moesim::kernels::measure {
namespace {

// Routers of the paper and of later models, on one GPU's tokens.
struct Routing {
  const char* router;
  std::int64_t experts;
  const char* capacity_factor;  // the paper's convention: k keeps all of a balanced router
  const char* priority;
};

PointSpec route_point(const char* op, std::int64_t tokens, const Routing& routing) {
  PointSpec spec;
  spec.op = op;
  spec.params = {{"router", routing.router},
                 {"tokens", tokens},
                 {"experts", routing.experts},
                 {"capacity_factor", routing.capacity_factor},
                 {"priority", routing.priority}};
  // Logits once, and some 16 bytes per route; k is not looked up for an estimate.
  spec.bytes = static_cast<double>(tokens) * (4.0 * static_cast<double>(routing.experts) + 64);
  spec.held_bytes = 8 * spec.bytes;
  return spec;
}

std::vector<PointSpec> routing_points(Ranks) {
  constexpr std::array routings{
      Routing{"top1", 8, "1", "token-max"},       Routing{"top2", 8, "2", "token-max"},
      Routing{"top2+fr+ir", 8, "1", "token-max"}, Routing{"top2", 64, "2", "token-max"},
      Routing{"top2", 64, "1", "own-score"},      Routing{"top2", 64, "1", "position"},
      Routing{"top2", 64, "1", "random"},         Routing{"top2+fr+ir", 64, "1", "token-max"},
      Routing{"top8", 256, "8", "token-max"},     Routing{"top8", 512, "8", "token-max"}};
  std::vector<PointSpec> points;
  for (const std::int64_t tokens : {1024, 4096, 16384}) {
    for (const Routing& routing : routings) {
      points.push_back(route_point("route", tokens, routing));
    }
    for (const Routing& routing : {routings[1], routings[3], routings[8]}) {
      PointSpec gate = route_point("gate", tokens, routing);
      constexpr std::int64_t hidden = 4096;
      gate.params["hidden"] = hidden;
      gate.params["dtype"] = "bf16";
      gate.bytes += bf16_bytes * static_cast<double>((tokens + routing.experts) * hidden);
      gate.flops = 2 * static_cast<double>(tokens * routing.experts * hidden);
      gate.held_bytes += rotation_bytes;
      points.push_back(gate);
    }
  }
  return points;
}

}  // namespace

Suite routing_suite() {
  return {"routing",
          "this project's router kernels: gate, choices, capacity, fill-in, rectification",
          {},
          1,
          routing_points};
}

}  // namespace moesim::kernels::measure
