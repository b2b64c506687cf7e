#pragma once

#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// The links of a topology that can ever hold a message back. A tier of switches is left out where
// the ports below each of its switches have together no more bandwidth than the way up or down:
// their capacities imply its own, so that all max-min rates are the same without it, at half the
// links of a route. What its links add to the latency of a route is kept beside.
class LeanTopology {
 public:
  // Keeps a reference: `whole` must outlive it. Throws Error as check(topology) does.
  explicit LeanTopology(const Topology& whole);

  const Topology& links() const { return lean_; }
  // How much later a message begins on links(), to enter them when it would enter `whole`.
  // Precondition: as Topology::route.
  Picoseconds delay(int source, int destination) const;

 private:
  const Topology& whole_;
  Topology lean_;
  bool smaller_ = false;
};

}  // namespace moesim::network
