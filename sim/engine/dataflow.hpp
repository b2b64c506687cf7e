#pragma once

#include "sim/engine/engine.hpp"
#include "sim/network/exchange/exchange_clock.hpp"

namespace moesim::engine {

// Whether equivalent ranks are simulated once (fold.hpp).
enum class Folding { off, on };

// The uneven exchanges of a program: their matrices, and the model that times one exchange.
struct Exchanges {
  const Traffic* traffic = nullptr;  // null: every exchange takes its given duration
  network::ExchangeClock* clock = nullptr;
};

// Runs a program whose exchanges do not affect each other. Later operations then cannot change
// earlier times, so one pass over the operations, each for all ranks at once, gives the same bits
// as the events of run() on an IdleFabric. There is no queue, and times are read and written in
// memory order.
//
// Even collectives begin when their last member arrives and end for all members at once. In an
// uneven exchange each member's messages start when it arrives, and it continues when its own
// messages are sent and received: ranks drift apart from layer to layer. Throws std::logic_error if
// an operation waits for a later one.
Execution run_alone(const Program& program, const Durations& durations,
                    const Exchanges& exchanges = {}, Folding folding = Folding::on);

}  // namespace moesim::engine
