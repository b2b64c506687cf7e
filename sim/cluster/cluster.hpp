#pragma once

#include <string>

#include "sim/base/document.hpp"
#include "sim/base/units.hpp"

namespace moesim::cluster {

// What lies outside one node's profile: how nodes are built and joined (profiles/clusters, schema
// profiles/schema/cluster.schema.json). Bandwidths are per direction.
struct Cluster {
  std::string name;
  std::string source;
  int gpus_per_node = 8;
  int gpus_per_domain = 8;         // GPUs that reach each other over NVLink
  Bandwidth nic_per_gpu;           // line rate of the NICs of a node over its GPUs
  double nic_efficiency = 1;       // share of the line rate that an exchange reaches
  double nic_efficiency_low = 1;   // 5 % and 95 % quantiles over settings of the same hardware: the
  double nic_efficiency_high = 1;  // error bar of what crosses nodes
  double nic_latency_us = 0;       // one message across the fabric, both ends
  std::string efficiency_origin;   // "published ..." or "assumed ...": shown in provenance
  std::string latency_origin;

  // Shipped name or path. Throws UsageError naming file and key.
  static Cluster load(const std::string& name_or_path);
  static Cluster read(const Document& document);

  Bandwidth effective_nic() const {
    return Bandwidth(nic_per_gpu.bytes_per_second * nic_efficiency);
  }
  int node_of(int gpu) const { return gpu / gpus_per_node; }
  int domain_of(int gpu) const { return gpu / gpus_per_domain; }
};

}  // namespace moesim::cluster
