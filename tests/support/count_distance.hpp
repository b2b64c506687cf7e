#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "sim/routing/simulation/routing_simulation.hpp"

namespace moesim::routing {

// How far routing by counts is from routing tokens: both route the same layers, whose popularities
// are drawn equally, and the mean difference over layers is given with its standard error.

struct DistanceShape {
  std::string scores;
  int experts = 8, gpus = 16, expert_parallel = 8;
  std::int64_t tokens = 1024;
  int layers = 16;

  std::string name() const;
};

struct Distance {
  struct Metric {
    std::string name;
    double tokens = 0;  // mean at token level: per cent, or rows
    double off = 0;     // counts less tokens: percentage points, or per cent of rows
    double error = 0;   // standard error of `off`
    double bar = 0;     // in the same unit
  };
  std::string router;
  std::vector<Metric> metrics;
};

// Jobs with k of 1, 2, 4 and 8 (below the number of experts) over capacity factors, priorities,
// scopes, fill orders and rectifications; and the routers that draw or hash.
std::vector<RouterConfig> distance_routers(int experts);

// The same of routers that keep all routes, whose tokens are then also counted per destination:
// the k best, group-limited by several scores, bias-balanced, sigmoid scores.
std::vector<RouterConfig> kept_routers(int experts);

// Leaves out the routers whose counts are refused in that shape. Figures at token level are kept in
// `folder`, if there is one, and read from there the next time: a file for each shape, to be
// deleted when routing tokens has changed.
std::vector<Distance> count_distances(const DistanceShape& shape,
                                      const std::vector<RouterConfig>& routers,
                                      const std::string& folder = "");

std::vector<DistanceShape> quick_shapes();
std::vector<DistanceShape> all_shapes();
std::vector<DistanceShape> kept_shapes();  // for kept_routers()

}  // namespace moesim::routing
