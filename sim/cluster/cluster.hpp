#pragma once

#include <string>
#include <vector>

#include "sim/base/formats/document.hpp"
#include "sim/base/units.hpp"
#include "sim/cluster/measured_dispatch.hpp"
#include "sim/cluster/measured_exchange.hpp"

namespace moesim::cluster {

// The most GPUs of a job, so of the ranks of any group: products of sizes stay inside 64 bits, and
// ranks inside the counters of the random streams (below 2^24).
inline constexpr int most_gpus = 1 << 20;

// A share of a line rate that an exchange reaches. low and high are its 5 % and 95 % quantiles over
// settings of the same hardware: the error bar of what passes there.
struct Efficiency {
  double value = 1;
  double low = 1;
  double high = 1;
  std::string origin;  // "published: ..." or "assumed: ...", shown in provenance
};

// How long the exchanges of NCCL take to start between nodes, as a multiple of what the law says
// (sim/network/ports/node_crossing.hpp), with its 5 % and 95 % quantiles. 0 is a cluster of ideal
// links: without software, and all parts of an exchange at the same time.
struct NicStart {
  double value = 1;
  double low = 0.5;
  double high = 1.9;
  std::string origin;  // as Efficiency
};

// One level of switches above the ports. A switch of the level has all ports below it, and one way
// up to the next level; above the last level stands an ideal crossbar.
struct Level {
  std::string name;       // "leaf", "host bridge"
  int below = 1;          // GPUs (of a domain) or nodes (of the fabric) below one switch
  Bandwidth uplink;       // of one switch, each direction, line rate
  double latency_us = 0;  // by how much a message is delayed, up and down together
};

// GPUs that reach each other without a NIC: over NVLink or a tree of PCIe switches.
struct Domain {
  std::string kind;  // "NVLink", "PCIe": for messages
  Bandwidth port;    // of one GPU, line rate
  Efficiency efficiency;
  double latency_us = 0;      // one message from GPU to GPU below one switch
  std::vector<Level> levels;  // lowest first
};

// How nodes are built and joined (profiles/clusters, schema profiles/schema/cluster.schema.json).
// Bandwidths are line rates per direction; what an exchange reaches is the line rate times the
// efficiency of its domain, or for all between the nodes that of the NICs.
// GPU g is number g % gpus_per_node of node g / gpus_per_node, and domains hold consecutive GPUs.
struct Cluster {
  std::string name;
  std::string source;
  std::string file;      // the document, for messages
  std::string gpu_name;  // "NVIDIA H800"; "": those of the profile
  std::string profile;   // shipped, that prices its GPUs' kernels; "": not said
  int nodes = 0;         // 0: as many as are asked for
  int gpus_per_node = 8;
  int gpus_per_domain = 1;  // a multiple of gpus_per_node, or 1: every message takes a NIC
  Domain domain;            // meaningful where gpus_per_domain > 1

  int nics_per_node = 0;      // 0: no network; divides gpus_per_node or is a multiple of it
  Bandwidth nic;              // one NIC
  Bandwidth nic_per_gpu;      // the NICs of a node over its GPUs
  double nic_efficiency = 1;  // as Efficiency
  double nic_efficiency_low = 1;
  double nic_efficiency_high = 1;
  NicStart nic_start;
  std::string nic_transport;  // "gpu" or "proxy" writes to them (dispatchers); "": not known
  double nic_latency_us = 0;  // one message between nodes below one leaf, both ends
  std::string efficiency_origin;
  std::string latency_origin;
  bool rails = false;         // NIC n of every node below one leaf is on leaf n of its group
  std::vector<Level> levels;  // of the fabric, lowest first
  std::vector<MeasuredExchange> exchanges;  // as measured on this cluster; mostly empty
  std::vector<MeasuredDispatch> dispatches;

  // Shipped name or path. Throws UsageError naming file and key.
  static Cluster load(const std::string& name_or_path);
  static Cluster read(const Document& document);

  // How GPUs with the kernels of `device` are named: "NVIDIA H800 with kernels of " and `shown`, of
  // a cluster with others; else `shown`.
  std::string gpu_title(const std::string& device, const std::string& shown) const;

  Bandwidth effective_nic() const {
    return Bandwidth(nic_per_gpu.bytes_per_second * nic_efficiency);
  }
  int node_of(int gpu) const { return gpu / gpus_per_node; }
  int domain_of(int gpu) const { return gpu / gpus_per_domain; }
  // The NIC of its node that a GPU sends through (the first of several).
  int nic_of(int gpu) const;
  // NICs of a node that different GPUs use: min(gpus_per_node, nics_per_node).
  int ports_per_node() const;
  // How many GPUs there are, 0: no limit. Without a network it ends with the first domain.
  int max_gpus() const;
  // The measured curve of an exchange among `gpus` spread evenly over `nodes`; of several libraries
  // the named one, or with "" the last in the document. nullptr: not measured.
  const MeasuredExchange* measured(MeasuredOperation operation, int nodes, int gpus,
                                   const std::string& library = "") const;
};

}  // namespace moesim::cluster
