#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"

namespace moesim::study {

struct ClusterImport {
  std::vector<std::string> files;  // of any kind of LogKind
  std::string base;                // cluster: shipped name or file
  std::string name;                // of the new cluster
  std::string op;                  // "all-to-all", ...: of nccl-tests output that does not say
  std::string nccl;                // "2.27.3": the same
  int nodes = 0;                   // of DeepEP's tests, which do not say; 0: one
  int experts = 256;               // the same
};

// The cluster that the import starts from.
struct ClusterBase {
  cluster::Cluster cluster;
  nlohmann::ordered_json json;  // of its document

  // `name_or_path` as Cluster::load() takes it.
  static ClusterBase load(const std::string& name_or_path);
};

struct ImportedCluster {
  nlohmann::ordered_json document;  // moesim cluster 2, checked; json_text() writes it
  std::vector<std::string> notes;   // what was taken from where, a line each
};

// The base cluster with what the logs measured:
// - nccl-tests: a curve under "exchanges" for each operation, number of nodes, of GPUs and NCCL
//   version: at each size the median of the runs, and quantiles_of() them where there are several;
//   runs that contradict each other are a warning. All-to-all, all-gather and send-receive of all
//   data types are runs of one exchange; of reductions those of 16 bits (else the only type), with
//   operator sum. Across domains also nic.start, nic.efficiency and nic.latency_us: see
//   link_figures.hpp.
// - perftest: nic.efficiency, unless nccl-tests across domains says more; latency tests raise
//   nic.latency_us where it is lower.
// - nvbandwidth: domain.efficiency.
// - DeepEP's test_intranode.py and test_internode.py: "dispatches".
// Throws UsageError naming the file: as the readers of logs, logs of GPUs that the base is not of
// (by the names in its name or source) or of different ones, more GPUs per host than the base has,
// links faster than the line rate of the base.
ImportedCluster import_cluster(const ClusterImport& request);
// The same from a base that is read already: request.base is not looked at.
ImportedCluster import_cluster(const ClusterImport& request, const ClusterBase& base);

}  // namespace moesim::study
