#include "sim/network/ports/port_bound.hpp"

namespace moesim::network {

double PortBound::slack() const {
  if (exact || lower.count <= 0) return 0;
  return static_cast<double>(upper.count) / static_cast<double>(lower.count) - 1;
}

}  // namespace moesim::network
