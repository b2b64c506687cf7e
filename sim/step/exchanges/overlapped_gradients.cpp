#include "sim/step/exchanges/overlapped_gradients.hpp"

#include <algorithm>
#include <array>

#include "sim/profile/hidden_share.hpp"

namespace moesim::step {
namespace {

using engine::StreamKind;

bool crosses_domains(const engine::Partition& partition, const cluster::Cluster& cluster) {
  const std::vector<int>& members = partition.groups.front();
  const int domain = cluster.domain_of(members.front());
  return std::any_of(members.begin(), members.end(),
                     [&](int rank) { return cluster.domain_of(rank) != domain; });
}

bool waits_for_gradients(const engine::Program& program, const engine::Operation& operation) {
  return std::any_of(operation.after.begin(), operation.after.end(), [&](int before) {
    return program.operations[static_cast<std::size_t>(before)].stream == StreamKind::gradients;
  });
}

Picoseconds part_of(Picoseconds time, double share) {
  return Picoseconds::rounded(share * static_cast<double>(time.count));
}

}  // namespace

std::vector<engine::LostTime> slow_overlapped_gradients(
    const engine::Program& program, const cluster::Cluster& cluster, double slowdown,
    const std::function<Picoseconds(int operation)>& time_of, engine::Durations& durations) {
  std::vector<bool> crosses;  // [partition]
  for (const engine::Partition& partition : program.partitions) {
    crosses.push_back(crosses_domains(partition, cluster));
  }
  int last = -1;                             // reduction
  std::array<int, 2> last_on_links{-1, -1};  // inside domains, and across
  const double lost_share = std::max(0.0, 1 / slowdown - profile::hidden_share);
  std::vector<engine::LostTime> all;
  const auto lose = [&](int reduction, int to, Picoseconds time) {
    const auto at = static_cast<std::size_t>(reduction);
    durations.uniform[at] += time;
    for (Picoseconds& each : durations.per_rank[at]) each += time;
    all.push_back({reduction, to, time});
  };
  for (int op = 0; op < static_cast<int>(program.operations.size()); ++op) {
    const engine::Operation& operation = program.operations[static_cast<std::size_t>(op)];
    if (waits_for_gradients(program, operation)) {
      last = -1;
      last_on_links = {-1, -1};
    }
    const bool exchanges = operation.groups >= 0;
    const std::size_t links =
        exchanges && crosses[static_cast<std::size_t>(operation.groups)] ? 1 : 0;
    if (operation.stream == StreamKind::gradients) {
      last = op;
      last_on_links[links] = op;
    } else if (last >= 0 && !durations.skips(op)) {
      if (exchanges && last_on_links[links] >= 0) {
        lose(last_on_links[links], op, time_of(op));
      } else {
        lose(last, op, part_of(time_of(op), lost_share));
      }
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& one, const auto& other) {
    return one.operation < other.operation;
  });
  return all;
}

}  // namespace moesim::step
