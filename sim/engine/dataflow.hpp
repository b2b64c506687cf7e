#pragma once

#include "sim/engine/engine.hpp"
#include "sim/network/exchange/exchange_clock.hpp"

namespace moesim::engine {

// Whether ranks to which the same must happen are simulated once (fold.hpp).
enum class Folding { off, on };

// The uneven exchanges of a program: their matrices, and who tells the time of one of them.
struct Exchanges {
  const Traffic* traffic = nullptr;  // none: every exchange takes its duration
  network::ExchangeClock* clock = nullptr;
};

// Runs a program whose exchanges do not disturb each other. Nothing that happens later
// in a program then changes anything earlier, so that one pass over the operations, all ranks of
// one at a time, gives what the events of run() give on an IdleFabric, to the bit: no queue, times
// read and written in the order they lie in memory.
//
// Even collectives begin with their last member and end for all at once. In an uneven exchange each
// member's messages start when it arrives, and it goes on when its own are sent and received: ranks
// drift apart from layer to layer. Throws std::logic_error if an operation waits for a later one.
Execution run_alone(const Program& program, const Durations& durations,
                    const Exchanges& exchanges = {}, Folding folding = Folding::on);

}  // namespace moesim::engine
