#include "sim/network/fabric.hpp"

namespace moesim::network {

void IdleFabric::begin(int exchange, Picoseconds now, Picoseconds alone) {
  under_way_.push({now + alone, exchange, Completion::all_members});
}

std::optional<Completion> IdleFabric::next() const {
  if (under_way_.empty()) return std::nullopt;
  return under_way_.top();
}

void IdleFabric::take() { under_way_.pop(); }

}  // namespace moesim::network
