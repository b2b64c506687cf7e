#pragma once

#include "sim/cluster/cluster.hpp"

namespace moesim::cluster {

// Whether the domains of two clusters have links of other rates, or join another number of GPUs: an
// exchange inside them then need not err alike.
inline bool other_domain_links(const Cluster& one, const Cluster& other) {
  return one.gpus_per_domain != other.gpus_per_domain ||
         one.domain.port.bytes_per_second != other.domain.port.bytes_per_second ||
         one.domain.efficiency.value != other.domain.efficiency.value;
}

}  // namespace moesim::cluster
