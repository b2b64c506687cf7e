#pragma once

#include <map>
#include <set>
#include <string>

#include "sim/profile/nccl_tests/run.hpp"

namespace moesim::profile {

// The ranks of a run as its table of devices lists them.
struct ListedRanks {
  std::map<std::string, int> on_host;
  std::set<std::string> devices, groups, numbers;
  int count = 0;
  int repeated = 0;  // with a number that was there before

  void add(const std::string& number, const std::string& group, const std::string& host,
           const std::string& device);
};

// Sets the hosts and the device of a run of these ranks, of which there is at least one. Throws
// UsageError naming file and line for one rank many times, several groups, GPUs that are not of one
// kind or not the same number on each host.
void take_ranks(NcclTestsRun& run, const ListedRanks& ranks);

}  // namespace moesim::profile
