#pragma once

#include <span>
#include <string>

#include "sim/model/model.hpp"
#include "sim/scenario/options.hpp"

// What is worth saying about the scenarios of a run beside its result, as note() of output.hpp.
namespace moesim::tool {

// Says what of a model's config.json is not counted, such as a vision tower; `name` is as typed.
void note_left_out(const model::Model& model, const std::string& name);

// One line to stderr for each typed option that no scenario of the run has a use for.
void note_idle_options(const scenario::OptionValues& typed,
                       std::span<const scenario::Scenario* const> scenarios, scenario::Asker asker);

void note_idle_option(const scenario::IdleOption& idle);

// One such line where a capacity factor that was typed without a convention or dialect has fewer
// slots than a balanced load needs: often meant per routed token. Of a list only where k is 4 or
// more and less than half of that load fits.
void note_small_capacity(const scenario::OptionValues& typed,
                         std::span<const scenario::Scenario* const> scenarios);

// One such line for each router whose rule in a forward pass is another than in training.
void note_trained_routers(std::span<const scenario::Scenario* const> scenarios);

// One such line for each router of one expert whose --priority compares weights that are all 1.
void note_equal_weights(std::span<const scenario::Scenario* const> scenarios);

// Such a line where routers of two experts choose the second by other rules, which changes their
// losses more than most options that are compared: top2 as DeepSpeed has it samples it, but not
// with fill-in, which chooses three.
void note_second_experts(std::span<const scenario::Scenario* const> scenarios);

// Such lines for each recording and model, where a trace says what is not typed (experts, GPUs,
// tokens) or has fewer steps than the run replicas, and where a trace or counts have fewer layers
// or experts than the model; and for each router whose biases are trained on a --routing that was
// typed.
void note_scores(const scenario::OptionValues& typed,
                 std::span<const scenario::Scenario* const> scenarios);

// Throws UsageError where the routing of one replica does not fit this machine's memory.
void check_routing_fits(const scenario::Scenario& scenario);

// One such line, before it starts, for routing that takes a minute of CPU time or more, with how
// long and what takes less.
void note_costly_routing(const scenario::Scenario& scenario);
// The same of exact flows, where the scenario asks for them.
void note_costly_flows(const scenario::Scenario& scenario);

}  // namespace moesim::tool
