// Grouped send / recv as NCCL runs them: facts from NVIDIA/nccl, src/init.cc (p2pSchedule), the
// batches of src/enqueue.cc and src/include/channel.h (ncclP2pChannelBaseForRound).
#include "sim/network/schedules/nccl_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/numbers.hpp"
#include "sim/network/schedules/exchange_schedule.hpp"

namespace moesim::network {
namespace {

// Ranks that are scheduled together: as many of a domain as divide every domain. Groups are
// numbered through the domains.
struct Groups {
  int size = 1;
  int count = 1;
  std::vector<std::vector<int>> ranks;  // [group]
  std::vector<int> group_of;            // [rank]
  std::vector<int> place_of;            // [rank]

  explicit Groups(const Domains& domains)
      : group_of(domains.domain_of.size()), place_of(domains.domain_of.size()) {
    size = 0;
    for (const auto& members : domains.ranks) {
      size = std::gcd(size, static_cast<int>(members.size()));
    }
    size = std::max(size, 1);
    for (const auto& members : domains.ranks) {
      for (std::size_t local = 0; local < members.size(); ++local) {
        const int rank = members[local];
        if (local % index_of(size) == 0) ranks.emplace_back();
        group_of[index_of(rank)] = static_cast<int>(ranks.size()) - 1;
        place_of[index_of(rank)] = static_cast<int>(ranks.back().size());
        ranks.back().push_back(rank);
      }
    }
    count = static_cast<int>(ranks.size());
  }
};

// The distances between groups in NCCL's order: x (x + 1) / 2 modulo the power of two that is not
// below their number, less those that do not exist. (The formula visits each once.)
std::vector<int> group_distances(int count) {
  unsigned power = 1;
  while (power < static_cast<unsigned>(count)) power *= 2;
  std::vector<int> distances;
  unsigned distance = 0;
  for (unsigned turn = 1; turn <= power; ++turn) {
    if (distance < static_cast<unsigned>(count)) distances.push_back(static_cast<int>(distance));
    distance = (distance + turn) % power;
  }
  return distances;
}

std::vector<int> peers_of(const Groups& groups, const std::vector<int>& distances, int rank) {
  std::vector<int> peers;
  for (const int distance : distances) {
    const auto& group =
        groups.ranks[index_of((groups.group_of[index_of(rank)] + distance) % groups.count)];
    for (int shift = 0; shift < groups.size; ++shift) {
      peers.push_back(group[index_of((groups.place_of[index_of(rank)] + shift) % groups.size)]);
    }
  }
  return peers;
}

// The batch that a round belongs to, numbered so that batches of one channel are equal modulo the
// number of channels.
int batch_of(int round, const Groups& groups, bool one_domain, int batch) {
  if (one_domain) return round;
  const int per_group = (groups.size + batch - 1) / batch;
  return round / groups.size * per_group + round % groups.size / batch;
}

// Whether all batches of an exchange have a channel of their own, so that ranks that start together
// send all at once.
bool is_a_burst(const Topology& topology, const NcclSettings& settings) {
  const Domains domains(topology);
  const Groups groups(domains);
  return batch_of(topology.ranks() - 1, groups, domains.ranks.size() == 1, settings.batch) <
         settings.channels;
}

// The bytes that its messages are on the wire, LL's flags with them.
ByteMatrix wire_bytes(const ExchangeRequest& request) {
  ByteMatrix wire = request.bytes;
  const NcclSettings& nccl = request.settings.nccl;
  for (int source = 0; source < wire.ranks(); ++source) {
    for (int destination = 0; destination < wire.ranks(); ++destination) {
      std::int64_t& bytes = wire.at(source, destination);
      if (bytes > nccl.parts * nccl.low_latency_bytes) continue;
      if (!request.topology.same_domain(source, destination)) continue;
      bytes = std::llround(static_cast<double>(bytes) * nccl.low_latency_overhead);
    }
  }
  return wire;
}

MessagePlan plan(const ExchangeRequest& request) {
  const NcclSettings& nccl = request.settings.nccl;
  const Domains domains(request.topology);
  const Groups groups(domains);
  const std::vector<int> distances = group_distances(groups.count);
  const ByteMatrix wire = wire_bytes(request);
  const int ranks = request.bytes.ranks();
  const bool one_domain = domains.ranks.size() == 1;
  const int batches = batch_of(ranks - 1, groups, one_domain, nccl.batch) + 1;
  MessagePlan plan;
  // The beginning of each rank's batches; the batch before on the channel is done by then.
  std::vector<int> begins;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int batch = 0; batch < batches; ++batch) {
      begins.push_back(plan.add_join(request.start[index_of(rank)]));
    }
  }
  const auto begin_of = [&](int rank, int batch) {
    return begins[index_of(rank * batches + batch)];
  };
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<int> peers = peers_of(groups, distances, rank);
    for (int round = 0; round < ranks; ++round) {
      const int peer = peers[index_of(round)];
      const int batch = batch_of(round, groups, one_domain, nccl.batch);
      const int message = plan.add(rank, peer, wire.at(rank, peer));
      for (const int end : {rank, peer}) {
        plan.wait(message, begin_of(end, batch));
        if (batch + nccl.channels < batches) {
          plan.wait(begin_of(end, batch + nccl.channels), message);
        }
      }
    }
  }
  return plan;
}

bool start_together(std::span<const Picoseconds> start) {
  return std::all_of(start.begin(), start.end(),
                     [&](Picoseconds time) { return time == start.front(); });
}

ExchangeTimes times(const ExchangeRequest& request) {
  if (start_together(request.start) && is_a_burst(request.topology, request.settings.nccl)) {
    const ByteMatrix wire = wire_bytes(request);
    return times_of_burst({request.topology, wire, request.start, request.settings});
  }
  return times_of_plan(plan(request), request);
}

}  // namespace

std::vector<int> nccl_peers(const Topology& topology, int rank) {
  const Groups groups{Domains(topology)};
  return peers_of(groups, group_distances(groups.count), rank);
}

const ExchangeSchedule schedules::nccl{
    .name = "nccl",
    .help = "grouped send/recv in NCCL's order of peers, a window of them at once",
    .plan = plan,
    .times = times,
    .most_ranks = 1024,
    .runs_nccl = true,
    .bytes_on_links = wire_bytes,
    .assumptions =
        [](const ExchangeSettings& settings) {
          return fmt::format(" (assumed: {} channels)", settings.nccl.channels);
        },
};

}  // namespace moesim::network
