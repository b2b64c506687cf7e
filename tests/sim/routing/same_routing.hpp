#pragma once

#include <cstddef>

#include "sim/routing/jobs/layer_routing.hpp"
#include "tests/support/catch.hpp"

namespace moesim::routing {

inline void check_same(const TokenLoss& one, const TokenLoss& other) {
  CHECK(one.failed == other.failed);
  CHECK(one.partial == other.partial);
  CHECK(one.lost_mass == other.lost_mass);
  CHECK(one.fill_failed == other.fill_failed);
  CHECK(one.failed_attempted == other.failed_attempted);
  CHECK(one.unrouted == other.unrouted);
  CHECK(one.residual_loss == other.residual_loss);
  CHECK(one.not_chosen == other.not_chosen);
  CHECK(one.padded == other.padded);
  CHECK(one.duplicate_ir == other.duplicate_ir);
}

// Of every bit.
inline void check_same(const ReplicaRouting& one, const ReplicaRouting& other) {
  check_same(one.loss, other.loss);
  REQUIRE(one.layers.size() == other.layers.size());
  for (std::size_t layer = 0; layer < one.layers.size(); ++layer) {
    CHECK(one.layers[layer].kept_rows == other.layers[layer].kept_rows);
    CHECK(one.layers[layer].ir_rows == other.layers[layer].ir_rows);
    CHECK(one.layers[layer].demand == other.layers[layer].demand);
    CHECK(one.layers[layer].capacity == other.layers[layer].capacity);
    CHECK(one.layers[layer].exchanged_capacity == other.layers[layer].exchanged_capacity);
    CHECK(one.layers[layer].group_blocks == other.layers[layer].group_blocks);
    CHECK(one.layers[layer].exchanged == other.layers[layer].exchanged);
    check_same(one.layers[layer].loss, other.layers[layer].loss);
  }
}

}  // namespace moesim::routing
