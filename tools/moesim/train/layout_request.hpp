#pragma once

#include <cstdint>
#include <vector>

#include "sim/model/offload.hpp"
#include "sim/model/precision.hpp"
#include "sim/model/recompute.hpp"
#include "sim/parallel/layout_rules.hpp"
#include "sim/profile/device.hpp"
#include "tools/moesim/command.hpp"

namespace moesim::tool {

// The flags of a training job's model, layout, batch and schedule, as `layout` and `train` take
// them.
std::vector<Flag> layout_flags();

// --model, or the default one.
model::Model requested_model(const CommandLine& line);
// A whole number from 1 on. Throws UsageError naming the flag.
std::int64_t requested_whole(const CommandLine& line, const char* flag, std::int64_t fallback);

model::Precision requested_precision(const CommandLine& line);
// Whether FP8 weights are kept by row and by column: Hopper has no FP8 product by column.
bool copies_transposed(const profile::Device& device);
model::Recompute requested_recompute(const CommandLine& line);
model::Offload requested_offload(const CommandLine& line);
int requested_moment_bytes(const CommandLine& line);  // of each of Adam's two
// Rows of experts on the fullest rank over balance. Throws UsageError below 1.
double requested_expert_load(const CommandLine& line, double fallback);

// The layout that the flags ask for; experts lie inside a domain where nothing is said. Throws
// UsageError naming the flag.
parallel::LayoutRequest requested_layout(const CommandLine& line, const model::Model& model,
                                         int ranks_per_domain);

// A flag's values, from the names of an enumeration.
template <class Names>
std::vector<scenario::NamedValue> name_choices(const Names& names) {
  std::vector<scenario::NamedValue> choices;
  for (const auto& name : names) choices.push_back({name.name, name.meaning});
  return choices;
}

}  // namespace moesim::tool
