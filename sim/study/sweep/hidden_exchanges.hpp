#pragma once

#include "sim/engine/engine.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::study {

// How much less the log of an executed step's time would be if computing hid what ZeRO 2 and 3
// exchange in every micro-step, as training::hidden_gain() says of a step of `train`; 0 of other
// steps. A simulated step prefetches no weights (ZeRO 3), and reductions beside the backward pass
// get on in a quarter of its time (`--overlap gradient`); software may hide more, and no public
// step tells how much.
//
// The operations of the slowest rank are timed once more: weights are gathered beside all that ran
// since those before were, and gradients that are reduced beside the backward pass get on in all of
// its time. Exchanges on the same links (NICs where both groups cross NVLink domains, NVLink where
// neither does) hide nothing; nor does computing hide gradients that are to be reduced after it
// (`--overlap none`).
double hidden_gain(const scenario::Scenario& scenario, const engine::Program& program,
                   const engine::Execution& execution);

}  // namespace moesim::study
