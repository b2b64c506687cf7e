#pragma once

#include <span>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"
#include "sim/network/schedules/exchange_schedule.hpp"
#include "sim/network/schedules/exchange_settings.hpp"
#include "sim/network/schedules/exchange_times.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// `start` is when each rank begins to send: one per rank, or empty for all at 0. The diagonal of
// the matrix is not sent. Throws UsageError for sizes that do not match, bytes below 0, settings
// out of range; Error for a topology that does not connect the ranks.
ExchangeTimes simulate_exchange(const Topology& topology, const ByteMatrix& bytes,
                                std::span<const Picoseconds> start,
                                const ExchangeSchedule& schedule,
                                const ExchangeSettings& settings = {});

// Expected rows that cross to a domain over rows bound for it, when each token chooses `choices`
// different experts of `experts` uniformly and independently, experts being spread evenly over
// `domains`: distinct domains over choices. Precondition: 1 <= choices <= experts,
// domains divides experts.
double distinct_share(int experts, int domains, int choices);

}  // namespace moesim::network
