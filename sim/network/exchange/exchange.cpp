#include "sim/network/exchange/exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <limits>

#include "sim/base/check_range.hpp"
#include "sim/base/error.hpp"
#include "sim/base/numbers.hpp"
#include "sim/profile/moe_exchange_law.hpp"

namespace moesim::network {
namespace {

void check_request(const ExchangeRequest& request) {
  const ExchangeSettings& settings = request.settings;
  const int ranks = request.topology.ranks();
  if (request.bytes.ranks() != ranks || request.start.size() != index_of(ranks)) {
    throw UsageError(fmt::format(
        "an exchange of {} ranks with {} start times on a topology of {}: expected the same number",
        request.bytes.ranks(), request.start.size(), ranks));
  }
  for (int source = 0; source < ranks; ++source) {
    const std::int64_t* row = request.bytes.row(source);
    const std::int64_t* negative =
        std::find_if(row, row + ranks, [](std::int64_t bytes) { return bytes < 0; });
    if (negative != row + ranks) {
      throw UsageError(fmt::format("byte matrix, row {}, column {}: {} bytes: expected 0 or more",
                                   source, negative - row, *negative));
    }
    if (request.start[index_of(source)] < Picoseconds(0)) {
      throw UsageError(fmt::format("rank {} starts before time 0", source));
    }
  }
  if (!(settings.distinct_share > 0 && settings.distinct_share <= 1)) {
    throw UsageError(fmt::format("a distinct share of {}: expected more than 0, at most 1",
                                 settings.distinct_share));
  }
  constexpr int most = 1 << 20;
  check_range("ExchangeSettings::tolerance", settings.tolerance, 0, 1);
  check_range("ExchangeSettings::slices", settings.slices, 1, most);
  check_range("NcclSettings::channels", settings.nccl.channels, 1, most);
  check_range("NcclSettings::batch", settings.nccl.batch, 1, most);
  check_range("NcclSettings::parts", settings.nccl.parts, 1, most);
  check_range("NcclSettings::low_latency_bytes", settings.nccl.low_latency_bytes, 0,
              std::numeric_limits<std::int64_t>::max());
  check_range("NcclSettings::low_latency_overhead", settings.nccl.low_latency_overhead, 1, most);
}

}  // namespace

ExchangeTimes simulate_exchange(const Topology& topology, const ByteMatrix& bytes,
                                std::span<const Picoseconds> start,
                                const ExchangeSchedule& schedule,
                                const ExchangeSettings& settings) {
  const std::vector<Picoseconds> zeros(start.empty() ? index_of(topology.ranks()) : 0);
  const ExchangeRequest request{topology, bytes, start.empty() ? zeros : start, settings};
  check(topology);
  check_request(request);
  ExchangeTimes times = run(schedule, request);
  for (std::size_t rank = 0; rank < times.rank_finish.size(); ++rank) {
    // No byte of anyone's, be it forwarded: bounds and plans leave such a rank at 0.
    Picoseconds& finish = times.rank_finish[rank];
    if (finish == Picoseconds(0)) finish = request.start[rank];
  }
  return times;
}

double distinct_share(int experts, int domains, int choices) {
  assert(choices >= 1 && choices <= experts && domains >= 1 && experts % domains == 0);
  return profile::distinct_places({experts, choices, 0}, domains) / choices;
}

}  // namespace moesim::network
