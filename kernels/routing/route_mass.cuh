#pragma once

#include "kernels/base/device.cuh"
#include "kernels/routing/arguments.hpp"

// The rule from slots to weights, for the kernels that apply it.
namespace moesim::kernels::routing {

// The sums that a token's weights are divided by, taken choice after choice, as the reference takes
// them, so that weights agree to the bit.
struct RouteMass {
  float kept = 0;
  float top = 0;

  MOESIM_DEVICE void add(float g, bool keep, bool primary) {
    kept = ::moesim::routing::add(kept, keep ? g : 0.0F);
    if (primary) top = ::moesim::routing::add(top, g);
  }
  MOESIM_DEVICE float whole(WeightRule rule, float ir_mass) const {
    return rule == WeightRule::kept          ? ::moesim::routing::add(kept, ir_mass)
           : rule == WeightRule::before_drop ? top
                                             : 1.0F;
  }
};

MOESIM_DEVICE float route_weight(float g, bool kept, float whole) {
  return kept && whole > 0 ? ::moesim::routing::divide(g, whole) : 0.0F;
}

// weigh_routes() for one token of a router without IR, by a warp: lane c gives probability and fate
// of choice c and gets its weight.
MOESIM_DEVICE float weigh_lane(const WeighArguments& in, float g, bool kept) {
  const std::uint32_t keep = ballot(kept);
  RouteMass mass;
  for (int choice = 0; choice < in.choices; ++choice) {
    mass.add(shuffle(g, choice), (keep >> choice & 1U) != 0, choice < in.top_k);
  }
  return route_weight(g, kept, mass.whole(in.rule, 0));
}

}  // namespace moesim::kernels::routing
