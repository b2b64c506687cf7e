#pragma once

#include <cstdint>
#include <limits>

#include "sim/scenario/idle_rules.hpp"
#include "sim/scenario/option.hpp"

namespace moesim::scenario {

// How often a scenario is simulated, with which random numbers.
struct Run {
  int replicas = 16;
  std::uint64_t seed = 1;
};

template <class Table>
void declare_run(Table& table) {
  table.whole("replicas", "N", 1, 1 << 20, &Run::replicas)
      .by_default("16")
      .help("repetitions with other random numbers")
      .in_route(true)
      .idle(unless_drawn);
  table.whole("seed", "N", 0, std::numeric_limits<std::int64_t>::max(), &Run::seed)
      .by_default("1")
      .help("of the random numbers")
      .affects(Affects::routing)
      .idle(unless_random);
}

}  // namespace moesim::scenario
