#pragma once

#include <memory>
#include <string>

#include "sim/routing/rules/expert_placement.hpp"

namespace moesim::scenario {

// What --expert-placement means for `experts` over `ranks`: null for contiguous (expert e on rank
// e / (experts / ranks)).
//   contiguous, round-robin  expert e on rank e % ranks
//   balanced:FILE            by the counts of a CSV of layer, expert, count, each layer by itself:
//                            the busiest first, to the least loaded rank with room
//   FILE                     a CSV of expert, rank and, where layers differ, layer; layers beyond
//                            the file's start again from its first
// Every rank has equally many. Throws UsageError naming the flag, and the file's line for what it
// has wrong.
std::shared_ptr<const routing::ExpertPlacement> parse_expert_placement(const std::string& text,
                                                                       int experts, int ranks);
// Whether its files can be read, whatever they hold.
void check_expert_placement(const std::string& text);

}  // namespace moesim::scenario
