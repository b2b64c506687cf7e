#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/profile/collective.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::study {

// A machine whose exchanges between nodes are public.
struct CrossingMachine {
  std::string system;
  std::shared_ptr<const profile::Profile> profile;  // its own or its sibling's
  cluster::Cluster cluster;                         // its line rates, the shipped law
  bool inside_known = true;  // false: no profile has its part inside a node; only its start is used
};

// One exchange of NCCL that was measured between nodes of 8 GPUs.
struct CrossingRow {
  std::size_t machine = 0;
  profile::Collective kind = profile::Collective::all_to_all;
  int nodes = 0;
  int gpus = 0;
  double bytes = 0;  // nccl-tests' size column
  double time_us = 0;
  std::string setting;  // "": the one that is predicted; else another setting of the same machine
};

struct CrossingTable {
  std::vector<CrossingMachine> machines;
  std::vector<CrossingRow> rows;
};

// NCCL's rows of internode_alltoall.csv, and simai_ata_ratio.csv and simai_nic_ratio.csv where they
// are there: of 8 GPUs a node. SimAI's ratios are of a line rate of 50 GB/s per GPU, which its
// tables do not name (the law's starts are absolute, so that this matters), its GPUs are taken for
// H100, and its rings for those of an all-gather. Peaks without a size count as 8 GiB. Throws
// UsageError naming file, line and column.
CrossingTable load_crossings(const std::string& folder);

}  // namespace moesim::study
