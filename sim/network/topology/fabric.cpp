#include "sim/network/topology/fabric.hpp"

#include <stdexcept>

namespace moesim::network {

void Fabric::announce(int /*exchange*/, std::span<const int> /*members*/, ByteMatrix /*bytes*/) {
  throw std::logic_error("an exchange by matrix on a fabric without links");
}

void Fabric::arrive(int /*exchange*/, int /*member*/, Picoseconds /*now*/) {
  throw std::logic_error("a member of an exchange that was not announced");
}

void IdleFabric::begin(int exchange, Picoseconds now, Picoseconds alone) {
  under_way_.push({now + alone, exchange, Completion::all_members});
}

std::optional<Completion> IdleFabric::next() {
  if (under_way_.empty()) return std::nullopt;
  return under_way_.top();
}

void IdleFabric::take() { under_way_.pop(); }

}  // namespace moesim::network
