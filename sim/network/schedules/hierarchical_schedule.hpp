#pragma once

#include "sim/base/byte_matrix.hpp"
#include "sim/network/topology/domains.hpp"

namespace moesim::network {

// The two bursts that a hierarchical exchange is made of, joined at each rank: first `inside`, then
// `across`.
struct TwoLevels {
  ByteMatrix inside;
  ByteMatrix across;
};
TwoLevels two_levels(const Domains& domains, const ByteMatrix& bytes);
// What each pair of ranks exchanges in both levels, on one way through a GPU of the own domain.
ByteMatrix bytes_of_both_levels(const Domains& domains, const ByteMatrix& bytes);

}  // namespace moesim::network
