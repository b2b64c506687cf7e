#pragma once

#include <algorithm>

#include "sim/cluster/cluster.hpp"

namespace moesim::cluster {

// Whether an exchange among that many nodes leaves its domain, so that NICs carry it.
inline bool crosses_domains(const Cluster& cluster, int nodes) {
  return nodes * cluster.gpus_per_node > cluster.gpus_per_domain;
}

// Whether an exchange was measured on the cluster that leaves its domain: what a run inside one
// node shows says nothing of it.
inline bool measured_between_domains(const Cluster& cluster) {
  return std::any_of(
      cluster.exchanges.begin(), cluster.exchanges.end(),
      [&](const MeasuredExchange& exchange) { return crosses_domains(cluster, exchange.nodes); });
}

}  // namespace moesim::cluster
