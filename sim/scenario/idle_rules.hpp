#pragma once

#include "sim/scenario/option.hpp"

namespace moesim::scenario {

// Why a typed option has no effect: rules for Option::idle, named after what is missing.
Reason without_experts(const Question& ask);
Reason without_capacity(const Question& ask);
Reason without_dialect(const Question& ask);
Reason without_overflow(const Question& ask);
Reason without_slots(const Question& ask);
Reason without_groups(const Question& ask);
Reason without_variants(const Question& ask);
Reason without_scores_of_experts(const Question& ask);
Reason without_blocks(const Question& ask);
Reason without_weights(const Question& ask);
Reason without_fill_in(const Question& ask);
Reason without_rectification(const Question& ask);
Reason without_rectified_step(const Question& ask);
Reason without_scores(const Question& ask);
Reason without_step(const Question& ask);
Reason without_moe_step(const Question& ask);
Reason without_several_experts(const Question& ask);
Reason without_exchange(const Question& ask);
Reason without_own_rows(const Question& ask);  // a dispatcher says what it sends of a token
Reason without_links(const Question& ask);     // a dispatcher's law has none to share
Reason without_overlap(const Question& ask);   // of computation and exchanges
Reason without_training(const Question& ask);
Reason without_phase(const Question& ask);
Reason without_sequences(const Question& ask);
Reason unless_drawn(const Question& ask);          // the routing of given logits draws nothing
Reason unless_model_is_read(const Question& ask);  // nor needs a model's router
Reason unless_random(const Question& ask);         // nor may its router
Reason unless_drawn_experts(const Question& ask);
Reason without_own_experts(const Question& ask);

// Which scenarios have the option in their rows: rules for Option::applies.
bool has_experts(const Scenario& scenario);
bool has_capacity(const Scenario& scenario);
bool has_blocks(const Scenario& scenario);
bool has_groups(const Scenario& scenario);
bool scores_experts(const Scenario& scenario);
bool has_dialect(const Scenario& scenario);
bool fills_in(const Scenario& scenario);
bool rectifies(const Scenario& scenario);
bool sends_counted_rows(const Scenario& scenario);
bool is_training(const Scenario& scenario);

}  // namespace moesim::scenario
