#include "sim/profile/nccl_tests/ranks.hpp"

#include <fmt/format.h>

namespace moesim::profile {

void ListedRanks::add(const std::string& number, const std::string& group, const std::string& host,
                      const std::string& device) {
  ++count;
  ++on_host[host];
  devices.insert(device);
  groups.insert(group);
  if (!numbers.insert(number).second) ++repeated;
}

void take_ranks(NcclTestsRun& run, const ListedRanks& ranks) {
  if (ranks.repeated > 0) {
    refuse(run, run.line,
           fmt::format("rank {} is listed several times: nccl-tests built without MPI ran alone in "
                       "each process; build it with MPI=1",
                       *ranks.numbers.begin()));
  }
  if (ranks.groups.size() > 1) {
    refuse(run, run.line,
           fmt::format("{} groups at once (NCCL_TESTS_SPLIT): run one, which has the links to "
                       "itself",
                       ranks.groups.size()));
  }
  if (ranks.devices.size() > 1) refuse(run, run.line, "different GPUs in one run");
  const int each = ranks.on_host.begin()->second;
  for (const auto& [host, gpus] : ranks.on_host) {
    if (gpus == each) continue;
    refuse(run, run.line,
           fmt::format("{} GPUs on {}, {} on {}: run with the same number on each host", each,
                       ranks.on_host.begin()->first, gpus, host));
  }
  run.hosts = static_cast<int>(ranks.on_host.size());
  run.device = *ranks.devices.begin();
}

}  // namespace moesim::profile
