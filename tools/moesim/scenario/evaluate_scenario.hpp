#pragma once

#include "sim/engine/timeline.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/study/sweep/outcome.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// Says beforehand, on stderr: options without effect, what a trace decides, what takes long.
void note_scenario(const CommandLine& line, const scenario::Scenario& scenario);

// One scenario, its routing drawn by `jobs` threads with progress on stderr. What the profile
// cannot price is refused before the routing, which may take long. `timeline` receives that of the
// median replica; null: not wanted.
study::Outcome evaluate_scenario(const scenario::Scenario& scenario, int jobs,
                                 engine::Timeline* timeline);

// Which options would make a step of too much memory fit, or help.
std::string memory_hint_text(const scenario::Scenario& scenario, const study::Outcome& outcome);

// Why an MFU can exceed 1.
inline constexpr const char* mfu_counts_dropped =
    "model FLOPs count dropped routes as if they were kept";

}  // namespace moesim::tool
