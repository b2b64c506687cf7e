#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/routing/rules/router_config.hpp"
#include "sim/routing/scores/score_source.hpp"
#include "sim/scenario/option_table.hpp"

namespace moesim::scenario {

// The options of the router; their fields are those of routing::RouterConfig.
void declare_router(OptionTable& table);
// Part of it: how scores of experts and groups are found.
void declare_router_scores(OptionTable& table);

// A number above 0; throws UsageError for another.
Decimal parse_capacity_factor(const std::string& text);

// Whether a router's k is the model's, typed or not: no --top-k and not the name of every router
// say it.
bool takes_models_k(const OptionValues& typed);

// Whether a router's k is that of the trace `scores`: no name of a router, no --top-k and no
// --model says another.
bool takes_recorded_k(const OptionValues& typed, const routing::ScoreSource& scores);

// Lines for routers with another k than the trace was recorded with, and for a token loss whose
// weights were not recorded.
std::vector<std::string> notes_of_recorded(const routing::ScoreSource& scores,
                                           std::span<const routing::RouterConfig> routers);

// Where blocks of an expert have more slots than a source has tokens, so that some stay empty
// whatever routing does, and are sent and computed all the same: a line that says so; else "".
// `tokens`: S of a source, which `experts` experts are for.
std::string note_of_empty_slots(const routing::RouterConfig& router, std::int64_t tokens,
                                std::int64_t experts);

// Where --priority own-weight tells no tokens apart, as the only expert of a token has all of its
// weight: a line that says so; else "".
std::string note_of_equal_weights(const routing::RouterConfig& router);

// Where loads are even because the router's biases are trained on an uneven popularity that was
// asked for: a line that says so, and how to have frozen ones; else "".
std::string note_of_trained_biases(const routing::ScoreSource& scores,
                                   const routing::RouterConfig& router);

}  // namespace moesim::scenario
