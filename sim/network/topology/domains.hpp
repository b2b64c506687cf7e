#pragma once

#include <vector>

#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// Which ranks share a domain. The local index of a rank is its position among the ranks of its
// domain; ranks of one local index form a rail.
struct Domains {
  explicit Domains(const Topology& topology);
  std::vector<std::vector<int>> ranks;  // [domain]
  std::vector<int> domain_of;           // [rank], numbered from 0
  std::vector<int> local_of;            // [rank]
  // The rank of a domain on `other`'s rail; of smaller domains, the index modulo their size.
  int on_rail(int domain, int other) const;
};

}  // namespace moesim::network
