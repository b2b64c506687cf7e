#include <fmt/format.h>

#include "sim/base/numbers.hpp"
#include "sim/network/schedules/exchange_schedule.hpp"
#include "sim/network/schedules/hierarchical_schedule.hpp"

namespace moesim::network {
namespace {

// Each message takes its way in slices, so that a slice goes on while the next one arrives.
MessagePlan plan(const ExchangeRequest& request) {
  const Domains domains(request.topology);
  const int ranks = request.bytes.ranks();
  const int slices = request.settings.slices;
  MessagePlan plan;
  for (int source = 0; source < ranks; ++source) {
    const int home = domains.domain_of[index_of(source)];
    for (int destination = 0; destination < ranks; ++destination) {
      const std::int64_t bytes = request.bytes.at(source, destination);
      if (bytes == 0 || source == destination) continue;
      const bool stays = domains.domain_of[index_of(destination)] == home;
      const int gate = stays ? source : domains.on_rail(home, destination);
      const Picoseconds start = request.start[index_of(source)];
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

}  // namespace

const ExchangeSchedule schedules::pxn{
    .name = "pxn",
    .help = "the same, each piece of a message as soon as it is there",
    .plan = plan,
    .most_ranks = 512,
    .runs_nccl = true,
    .bytes_on_links =
        [](const ExchangeRequest& request) {
          return bytes_of_both_levels(Domains(request.topology), request.bytes);
        },
    .bytes_inside = [](const Domains& domains,
                       const ByteMatrix& bytes) { return two_levels(domains, bytes).inside; },
    .assumptions =
        [](const ExchangeSettings& settings) {
          return fmt::format(" (assumed: {} slices)", settings.slices);
        },
};

}  // namespace moesim::network
