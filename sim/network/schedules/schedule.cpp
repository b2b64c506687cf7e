#include "sim/network/schedules/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace moesim::network {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// Cuts bytes into `slices` pieces that differ by at most one byte.
std::int64_t slice_of(std::int64_t bytes, int slice, int slices) {
  return bytes * (slice + 1) / slices - bytes * slice / slices;
}

std::int64_t deduplicated(std::int64_t bytes, double share) {
  if (bytes == 0) return 0;
  return std::max<std::int64_t>(1, std::llround(static_cast<double>(bytes) * share));
}

}  // namespace

Domains::Domains(const Topology& topology) {
  std::map<int, int> number;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const auto [found, added] =
        number.try_emplace(topology.domain_of[at(rank)], static_cast<int>(number.size()));
    if (added) ranks.emplace_back();
    std::vector<int>& members = ranks[at(found->second)];
    domain_of.push_back(found->second);
    local_of.push_back(static_cast<int>(members.size()));
    members.push_back(rank);
  }
}

int Domains::on_rail(int domain, int other) const {
  const std::vector<int>& members = ranks[at(domain)];
  return members[at(local_of[at(other)]) % members.size()];
}

MessagePlan plan_burst(const ExchangeRequest& request) {
  MessagePlan plan;
  const int ranks = request.bytes.ranks();
  for (int source = 0; source < ranks; ++source) {
    for (int destination = 0; destination < ranks; ++destination) {
      const std::int64_t bytes = request.bytes.at(source, destination);
      if (bytes > 0) plan.add(source, destination, bytes, request.start[at(source)]);
    }
  }
  return plan;
}

// Receives are posted ahead: a rank goes on when what it sends is sent, or, where the settings say
// so, when what it gets in that round is there too.
MessagePlan plan_pairwise(const ExchangeRequest& request) {
  MessagePlan plan;
  const int ranks = request.bytes.ranks();
  std::vector<int> done, next;
  for (int rank = 0; rank < ranks; ++rank) done.push_back(plan.add_join(request.start[at(rank)]));
  for (int shift = 1; shift < ranks; ++shift) {
    next.clear();
    for (int rank = 0; rank < ranks; ++rank) {
      next.push_back(plan.add_join());
      plan.wait(next.back(), done[at(rank)]);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const int peer = (rank + shift) % ranks;
      const int message = plan.add(rank, peer, request.bytes.at(rank, peer));
      plan.wait(message, done[at(rank)]);
      plan.wait(next[at(rank)], message);
      if (request.settings.pairwise_waits_for_receives) plan.wait(next[at(peer)], message);
    }
    std::swap(done, next);
  }
  return plan;
}

TwoLevels two_levels(const Domains& domains, const ByteMatrix& bytes) {
  TwoLevels levels{ByteMatrix(bytes.ranks()), ByteMatrix(bytes.ranks())};
  for (int source = 0; source < bytes.ranks(); ++source) {
    const int home = domains.domain_of[at(source)];
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      const std::int64_t amount = bytes.at(source, destination);
      if (domains.domain_of[at(destination)] == home) {
        levels.inside.at(source, destination) += amount;
        continue;
      }
      const int gate = domains.on_rail(home, destination);
      levels.inside.at(source, gate) += amount;
      levels.across.at(gate, destination) += amount;
    }
  }
  return levels;
}

// What a rank sends across waits for all that it sends and gets inside.
MessagePlan plan_hierarchical(const ExchangeRequest& request) {
  const TwoLevels levels = two_levels(Domains(request.topology), request.bytes);
  const int ranks = request.bytes.ranks();
  MessagePlan plan;
  std::vector<int> gathered;
  for (int rank = 0; rank < ranks; ++rank) {
    gathered.push_back(plan.add_join(request.start[at(rank)]));
  }
  const auto for_each = [ranks](const ByteMatrix& matrix, const auto& use) {
    for (int source = 0; source < ranks; ++source) {
      for (int destination = 0; destination < ranks; ++destination) {
        const std::int64_t bytes = matrix.at(source, destination);
        if (source != destination && bytes > 0) use(source, destination, bytes);
      }
    }
  };
  for_each(levels.inside, [&](int source, int destination, std::int64_t bytes) {
    const int message = plan.add(source, destination, bytes, request.start[at(source)]);
    plan.wait(gathered[at(source)], message);
    plan.wait(gathered[at(destination)], message);
  });
  for_each(levels.across, [&](int source, int destination, std::int64_t bytes) {
    plan.wait(plan.add(source, destination, bytes), gathered[at(source)]);
  });
  return plan;
}

// Each message takes its way in slices, so that a slice goes on while the next one arrives.
MessagePlan plan_pxn(const ExchangeRequest& request) {
  const Domains domains(request.topology);
  const int ranks = request.bytes.ranks();
  const int slices = request.settings.slices;
  MessagePlan plan;
  for (int source = 0; source < ranks; ++source) {
    const int home = domains.domain_of[at(source)];
    for (int destination = 0; destination < ranks; ++destination) {
      const std::int64_t bytes = request.bytes.at(source, destination);
      if (bytes == 0 || source == destination) continue;
      const bool stays = domains.domain_of[at(destination)] == home;
      const int gate = stays ? source : domains.on_rail(home, destination);
      const Picoseconds start = request.start[at(source)];
      if (gate == source) {
        plan.add(source, destination, bytes, start);
        continue;
      }
      int last = -1;
      for (int slice = 0; slice < slices; ++slice) {
        const std::int64_t part = slice_of(bytes, slice, slices);
        if (part == 0) continue;
        const int hop = plan.add(source, gate, part, start);
        if (last >= 0) plan.wait(hop, last);
        plan.wait(plan.add(gate, destination, part), last = hop);
      }
    }
  }
  return plan;
}

// Rows for one domain cross once, to the GPU there that is on the source's own rail.
MessagePlan plan_deepep(const ExchangeRequest& request) {
  const Domains domains(request.topology);
  const int ranks = request.bytes.ranks();
  const int slices = request.settings.slices;
  MessagePlan plan;
  for (int source = 0; source < ranks; ++source) {
    const Picoseconds start = request.start[at(source)];
    for (int domain = 0; domain < static_cast<int>(domains.ranks.size()); ++domain) {
      const std::vector<int>& members = domains.ranks[at(domain)];
      if (domain == domains.domain_of[at(source)]) {
        for (const int member : members) {
          const std::int64_t bytes = request.bytes.at(source, member);
          if (member != source && bytes > 0) plan.add(source, member, bytes, start);
        }
        continue;
      }
      const int gate = domains.on_rail(domain, source);
      std::int64_t bound = 0;
      for (const int member : members) bound += request.bytes.at(source, member);
      const std::int64_t crossing = deduplicated(bound, request.settings.distinct_share);
      int last = -1;
      for (int slice = 0; slice < slices; ++slice) {
        const std::int64_t part = slice_of(crossing, slice, slices);
        const int hop = plan.add(source, gate, part, start);
        if (last >= 0) plan.wait(hop, last);
        last = hop;
        for (const int member : members) {
          const std::int64_t rows = slice_of(request.bytes.at(source, member), slice, slices);
          if (member != gate && rows > 0) plan.wait(plan.add(gate, member, rows), hop);
        }
      }
    }
  }
  return plan;
}

ByteMatrix bytes_on_links(Schedule schedule, const ExchangeRequest& request) {
  const int ranks = request.bytes.ranks();
  switch (schedule) {
    case Schedule::burst:
    case Schedule::pairwise:
      break;
    case Schedule::nccl:
      return nccl_wire_bytes(request);
    case Schedule::hierarchical:
    case Schedule::pxn: {
      TwoLevels levels = two_levels(Domains(request.topology), request.bytes);
      for (int source = 0; source < ranks; ++source) {
        for (int destination = 0; destination < ranks; ++destination) {
          levels.inside.at(source, destination) += levels.across.at(source, destination);
        }
      }
      return std::move(levels.inside);
    }
    case Schedule::deepep:
      return plan_deepep(request).bytes(ranks);
  }
  return request.bytes;
}

}  // namespace moesim::network
