#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "sim/report/formats.hpp"
#include "tools/moesim/recommend/request/requested_machines.hpp"
#include "tools/moesim/recommend/several/machine_best.hpp"

namespace moesim::tool {

// A machine without a layout, and why.
struct RefusedMachine {
  const Machine* machine = nullptr;
  std::optional<int> gpus;  // nothing: not typed
  std::string reason;
  std::size_t search = 0;  // its place among all searches
};

struct MachineSearches {
  std::size_t machines = 0;        // that were asked for
  std::size_t numbers = 0;         // of GPUs, on each of them
  std::vector<MachineBest> found;  // by GPUs, then as the machines were typed
  std::vector<RefusedMachine> refused;
  study::SearchCounts counts;  // of all
  bool is_stopped = false;     // one of them, before it was proven

  // "b200-sxm"; "64 x b200-sxm" of several numbers of GPUs.
  std::string place_of(const MachineBest& best) const;
  std::string place_of(const RefusedMachine& without) const;
};

// table: the best of each, how each compares with the first, the commands; csv and json: a row of
// each machine and number of GPUs.
std::string machines_text(const MachineSearches& searches);
std::string machines_rows(const MachineSearches& searches, report::Format format);

}  // namespace moesim::tool
