#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// When the members of an exchange are done with it, if no other exchange uses its links.
class ExchangeClock {
 public:
  virtual ~ExchangeClock() = default;

  // `bytes` (below 2^52 in all) and `arrival` by member: a member's messages start when it arrives.
  // Writes when each member has arrived, sent and received everything; one with nothing to do is
  // done on arrival.
  virtual void finish(std::span<const int> members, const ByteMatrix& bytes,
                      std::span<const Picoseconds> arrival, std::span<Picoseconds> finish) = 0;

  // All that finish() reads of the members, as numbers: where these are the same for two lists of
  // members, so are the times of equal matrices and arrivals.
  virtual std::vector<std::int64_t> equivalence_key(std::span<const int> members) const = 0;
};

}  // namespace moesim::network
