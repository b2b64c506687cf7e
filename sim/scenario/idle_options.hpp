#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/scenario/options.hpp"

namespace moesim::scenario {

// What asks: a step, the routing of a scenario, or the routing of given logits.
enum class Asker { step, routing, logits };

// A typed option that changes no result, and why.
struct IdleOption {
  std::string option;  // without the dashes
  std::string why;
};

// The options of `typed` that none of the scenarios has a use for: `--fill-order` where no router
// fills in, say. In the order of the documentation.
std::vector<IdleOption> idle_options(const OptionValues& typed,
                                     std::span<const Scenario* const> scenarios, Asker asker);

}  // namespace moesim::scenario
