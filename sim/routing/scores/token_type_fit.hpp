#pragma once

#include <optional>
#include <vector>

#include "sim/routing/scores/score_model.hpp"
#include "sim/routing/traces/trace.hpp"

namespace moesim::routing {

// [layer] PairCounts::excess() of a trace of choices or logits, each token's top_k. Of many steps
// and ranks a part, evenly spaced: max(64, 2^25 / E^2) of them.
std::vector<double> pair_excess(const Trace& trace);

// `token_type` of a model whose other figures are fitted to the same trace: that at which
// the model, made to generate layers of the same size, has the mean excess of pairs over layers
// that the trace has (about (M - 1) / M^2 times the variance's square, M types, where it is
// small). The standard error is that of as many generated layers, terms drawn afresh in each: it
// holds as far as the model does. Where the excess is no more than without types the figure is 0;
// it is looked for up to 6.4, where experts that go together still more stay. Absent where pairs
// cannot tell: a trace of counts, tokens that choose one expert or all but one, fewer than 4
// tokens, more than 1,024 experts.
std::optional<FittedValue> fit_token_types(const ScoreModel& model, const Trace& trace);

}  // namespace moesim::routing
