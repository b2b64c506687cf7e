#include "sim/network/schedules/hierarchical_schedule.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "sim/base/numbers.hpp"
#include "sim/network/ports/port_bounder.hpp"
#include "sim/network/schedules/exchange_schedule.hpp"

namespace moesim::network {
namespace {

// What a rank sends across waits for all that it sends and gets inside.
MessagePlan plan(const ExchangeRequest& request) {
  const TwoLevels levels = two_levels(Domains(request.topology), request.bytes);
  const int ranks = request.bytes.ranks();
  MessagePlan plan;
  std::vector<int> gathered;
  for (int rank = 0; rank < ranks; ++rank) {
    gathered.push_back(plan.add_join(request.start[index_of(rank)]));
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
    const int message = plan.add(source, destination, bytes, request.start[index_of(source)]);
    plan.wait(gathered[index_of(source)], message);
    plan.wait(gathered[index_of(destination)], message);
  });
  for_each(levels.across, [&](int source, int destination, std::int64_t bytes) {
    plan.wait(plan.add(source, destination, bytes), gathered[index_of(source)]);
  });
  return plan;
}

// Both levels by their bounds: what crosses begins no earlier than the lower and no later than the
// upper bound of what is gathered, and both kinds of bound grow with the start.
ExchangeTimes times(const ExchangeRequest& request) {
  if (request.settings.method != Method::flows) {
    const TwoLevels levels = two_levels(Domains(request.topology), request.bytes);
    PortBounder bounder(request.topology);
    const PortBound inside = bounder.bound(levels.inside, request.start);
    std::vector<Picoseconds> early = inside.rank_lower;
    std::vector<Picoseconds> late = inside.rank_upper;
    bool known = inside.exact;
    for (std::size_t rank = 0; rank < early.size(); ++rank) {
      early[rank] = std::max(early[rank], request.start[rank]);
      late[rank] = std::max(late[rank], request.start[rank]);
      known = known && late[rank] - early[rank] <= Picoseconds(2);
    }
    bounder.starts_are(known ? PortBounder::Starts::known : PortBounder::Starts::at_least);
    PortBound across = bounder.bound(levels.across, early);
    const PortBound latest = bounder.bound(levels.across, late);
    across.lower = std::max(across.lower, inside.lower);
    across.upper = std::max({latest.upper, inside.upper, across.lower});
    for (std::size_t rank = 0; rank < early.size(); ++rank) {
      across.rank_lower[rank] = std::max(across.rank_lower[rank], inside.rank_lower[rank]);
      across.rank_upper[rank] =
          std::max({latest.rank_upper[rank], inside.rank_upper[rank], across.rank_lower[rank]});
    }
    across.exact = known && across.upper - across.lower <= Picoseconds(4);
    if (accepts(request.settings, across)) return times_of_bound(std::move(across));
  }
  return times_of_plan(plan(request), request);
}

}  // namespace

TwoLevels two_levels(const Domains& domains, const ByteMatrix& bytes) {
  TwoLevels levels{ByteMatrix(bytes.ranks()), ByteMatrix(bytes.ranks())};
  for (int source = 0; source < bytes.ranks(); ++source) {
    const int home = domains.domain_of[index_of(source)];
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      const std::int64_t amount = bytes.at(source, destination);
      if (domains.domain_of[index_of(destination)] == home) {
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

ByteMatrix bytes_of_both_levels(const Domains& domains, const ByteMatrix& bytes) {
  TwoLevels levels = two_levels(domains, bytes);
  for (int source = 0; source < bytes.ranks(); ++source) {
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      levels.inside.at(source, destination) += levels.across.at(source, destination);
    }
  }
  return std::move(levels.inside);
}

const ExchangeSchedule schedules::hierarchical{
    .name = "hierarchical",
    .help = "inside the node to the GPU of the destination's rail, then across",
    .plan = plan,
    .times = times,
    .most_ranks = 1024,
    .bounded = true,
    .runs_nccl = true,
    .bytes_on_links =
        [](const ExchangeRequest& request) {
          return bytes_of_both_levels(Domains(request.topology), request.bytes);
        },
    .bytes_inside = [](const Domains& domains,
                       const ByteMatrix& bytes) { return two_levels(domains, bytes).inside; },
};

}  // namespace moesim::network
