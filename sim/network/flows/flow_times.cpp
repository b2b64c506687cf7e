#include "sim/network/flows/flow_times.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "sim/base/check_range.hpp"
#include "sim/base/error.hpp"
#include "sim/network/flows/dense_flows.hpp"
#include "sim/network/flows/flow_folding.hpp"
#include "sim/network/flows/flow_matrix.hpp"
#include "sim/network/flows/flow_solver.hpp"
#include "sim/network/flows/flow_table.hpp"
#include "sim/network/flows/refilled_flows.hpp"
#include "sim/network/flows/transfers.hpp"

namespace moesim::network {
namespace {

constexpr std::int64_t latest = std::numeric_limits<std::int64_t>::max();

bool sends_nothing(const Flow& flow) { return flow.bytes == 0 || flow.source == flow.destination; }

// Collects flows, and the results of those that send nothing.
class Collector {
 public:
  Collector(const Topology& topology, std::size_t flows) : topology_(topology) {
    check(topology);
    if (flows >= std::numeric_limits<std::uint32_t>::max()) {
      throw UsageError(fmt::format("network: {} flows in one simulation are too many", flows));
    }
    table.route_links = longest_route(topology);
    table.capacity = link_capacities(topology);
    times.finish.resize(flows);
    times.rank_finish.resize(static_cast<std::size_t>(topology.ranks()));
    own_start_.resize(times.rank_finish.size());
    busy_.resize(times.rank_finish.size());
  }

  void reserve(std::size_t flows) {
    table.bytes.reserve(flows);
    table.entry.reserve(flows);
    table.origin.reserve(flows);
    table.hops.reserve(flows);
    table.links.reserve(flows * table.route_links);
  }

  void add(const Flow& flow, std::size_t origin) {
    if (sends_nothing(flow)) {
      times.finish[origin] = flow.start;
      Picoseconds& start = own_start_[static_cast<std::size_t>(flow.source)];
      start = std::max(start, flow.start);
      return;
    }
    const Route route = topology_.route(flow.source, flow.destination);
    const std::int64_t latency = topology_.latency(route).count;
    if (flow.start.count > latest - latency) {
      throw Error("network: a flow starts later than simulated time reaches");
    }
    table.bytes.push_back(flow.bytes);
    table.entry.push_back(flow.start.count + latency);
    table.origin.push_back(static_cast<std::uint32_t>(origin));
    table.hops.push_back(static_cast<std::uint8_t>(route.size()));
    table.links.insert(table.links.end(), route.begin(), route.end());
    table.links.resize(table.bytes.size() * table.route_links);
  }

  // Counts the flow's end: for the makespan and its two ranks, if it sends something.
  void arrive(const Flow& flow, Picoseconds end) {
    if (sends_nothing(flow)) return;
    times.makespan = std::max(times.makespan, end);
    for (const int rank : {flow.source, flow.destination}) {
      Picoseconds& finish = times.rank_finish[static_cast<std::size_t>(rank)];
      finish = std::max(finish, end);
      busy_[static_cast<std::size_t>(rank)] = true;
    }
  }

  // After all have arrived: ranks that neither sent nor received.
  void settle_idle() {
    for (std::size_t rank = 0; rank < busy_.size(); ++rank) {
      if (!busy_[rank]) times.rank_finish[rank] = own_start_[rank];
    }
  }

  FlowTable table;
  FlowTimes times;

 private:
  const Topology& topology_;
  std::vector<Picoseconds> own_start_;  // [rank] the latest of its flows that send nothing
  std::vector<bool> busy_;              // [rank] sends or receives
};

// Calls `ended(flow, time)` for every flow.
template <typename Enter, typename Ended>
void run(Transfers& transfers, std::size_t flows, Enter&& enter, Ended&& ended,
         FlowCounts& counts) {
  for (std::size_t flow = 0; flow < flows; ++flow) enter(static_cast<std::uint32_t>(flow));
  while (const Transfers::Ends* ends = transfers.next()) {
    for (const std::uint32_t flow : ends->flows) ended(flow, Picoseconds(ends->time));
    transfers.take();
  }
  const Transfers::Counts made = transfers.counts();
  counts.classes = static_cast<std::int64_t>(flows);
  counts.events = made.events;
  counts.level_changes = made.levels.changes;
  counts.evaluations = made.levels.evaluations;
  counts.fillings = made.levels.fillings;
  counts.moves = made.moves;
}

void run_folded(const FlowTable& table, const Folding& folding, FlowTimes& times) {
  std::vector<Picoseconds> ends(folding.classes.size());
  std::size_t most_hops = 1;
  for (const Folding::Class& one : folding.classes) {
    most_hops = std::max(most_hops, one.route.size());
  }
  Transfers transfers(folding.capacity, most_hops);
  const auto enter = [&](std::uint32_t which) {
    const Folding::Class& one = folding.classes[which];
    transfers.enter(which, static_cast<double>(one.bytes), one.entry, one.route);
  };
  run(
      transfers, folding.classes.size(), enter,
      [&](std::uint32_t which, Picoseconds time) { ends[which] = time; }, times.counts);
  for (std::size_t flow = 0; flow < table.size(); ++flow) {
    times.finish[table.origin[flow]] = ends[folding.class_of[flow]];
  }
}

// The tolerance up to which dense flows are exact instead, which is as fast.
constexpr Picoseconds finest_tolerance{1};
constexpr std::size_t most_exact_links = 256;  // on a side

template <typename Ended>
void run_exactly(FlowMatrix matrix, Ended&& ended, FlowCounts& counts) {
  const RefilledFlows::Result made = RefilledFlows(std::move(matrix)).run(ended);
  counts.events = made.events;
  counts.level_changes = made.levels;
  counts.moves = made.moves;
  counts.fillings = made.fillings;
}

template <typename Ended>
void run_tolerantly(FlowMatrix matrix, Picoseconds tolerance, Ended&& ended, FlowCounts& counts) {
  DenseFlows flows(std::move(matrix), static_cast<double>(tolerance.count));
  const DenseFlows::Result made = flows.run(ended);
  counts.events = made.events;
  counts.level_changes = made.level_changes;
  counts.moves = made.moves;
  counts.fillings = made.fillings;
  counts.correction = Picoseconds::rounded(made.correction);
}

bool run_dense(const FlowTable& table, Picoseconds tolerance, FlowTimes& times) {
  if (tolerance <= Picoseconds(0)) return false;
  std::optional<FlowMatrix> matrix = FlowMatrix::of(table);
  if (!matrix) return false;
  const auto ended = [&](std::uint32_t flow, Picoseconds time) {
    times.finish[table.origin[flow]] = time;
  };
  times.counts.dense = true;
  times.counts.classes = times.counts.flows;
  if (tolerance <= finest_tolerance && matrix->width() <= most_exact_links) {
    run_exactly(std::move(*matrix), ended, times.counts);
  } else {
    run_tolerantly(std::move(*matrix), tolerance, ended, times.counts);
  }
  return true;
}

void run_plain(const FlowTable& table, FlowTimes& times) {
  const auto longest = std::max_element(table.hops.begin(), table.hops.end());
  Transfers transfers(table.capacity, longest != table.hops.end() ? *longest : 1);
  std::vector<Hop> hops;
  const auto enter = [&](std::uint32_t flow) {
    hops_of(table.route(flow), hops);
    transfers.enter(flow, static_cast<double>(table.bytes[flow]), table.entry[flow], hops);
  };
  run(
      transfers, table.size(), enter,
      [&](std::uint32_t flow, Picoseconds time) { times.finish[table.origin[flow]] = time; },
      times.counts);
}

void run_table(const FlowTable& table, const FlowOptions& options, FlowTimes& times) {
  times.counts.flows = static_cast<std::int64_t>(table.size());
  const std::optional<Folding> folding = options.fold ? fold(table) : std::nullopt;
  if (folding) {
    run_folded(table, *folding, times);
  } else if (!run_dense(table, options.tolerance, times)) {
    run_plain(table, times);
  }
}

}  // namespace

FlowTimes run_flows(const Topology& topology, std::span<const Flow> flows,
                    const FlowOptions& options) {
  check_range("FlowOptions::tolerance, in ps,", options.tolerance.count, 0, latest);
  Collector collector(topology, flows.size());
  for (const Flow& flow : flows) check(topology, flow);
  collector.reserve(flows.size());
  for (std::size_t index = 0; index < flows.size(); ++index) collector.add(flows[index], index);
  run_table(collector.table, options, collector.times);
  for (std::size_t index = 0; index < flows.size(); ++index) {
    collector.arrive(flows[index], collector.times.finish[index]);
  }
  collector.settle_idle();
  return std::move(collector.times);
}

}  // namespace moesim::network
