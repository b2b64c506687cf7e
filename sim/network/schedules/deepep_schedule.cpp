#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/network/schedules/exchange_schedule.hpp"

#include "sim/base/numbers.hpp"

namespace moesim::network {
namespace {

std::int64_t deduplicated(std::int64_t bytes, double share) {
  if (bytes == 0) return 0;
  return std::max<std::int64_t>(1, std::llround(static_cast<double>(bytes) * share));
}

// Rows for one domain cross once, to the GPU there that is on the source's own rail.
MessagePlan plan(const ExchangeRequest& request) {
  const Domains domains(request.topology);
  const int ranks = request.bytes.ranks();
  const int slices = request.settings.slices;
  MessagePlan plan;
  for (int source = 0; source < ranks; ++source) {
    const Picoseconds start = request.start[index_of(source)];
    for (int domain = 0; domain < static_cast<int>(domains.ranks.size()); ++domain) {
      const std::vector<int>& members = domains.ranks[index_of(domain)];
      if (domain == domains.domain_of[index_of(source)]) {
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

}  // namespace

const ExchangeSchedule schedules::deepep{
    .name = "deepep",
    .help = "once to each node, to the GPU of one's own rail, then inside it",
    .plan = plan,
    .most_ranks = 512,
    .takes_distinct_share = true,
    .bytes_on_links =
        [](const ExchangeRequest& request) { return plan(request).bytes(request.bytes.ranks()); },
    .assumptions =
        [](const ExchangeSettings& settings) {
          return fmt::format(" (rows cross once per domain: {:.3g} of all) (assumed: {} slices)",
                             settings.distinct_share, settings.slices);
        },
};

}  // namespace moesim::network
