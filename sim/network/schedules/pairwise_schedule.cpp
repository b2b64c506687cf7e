#include <utility>
#include <vector>

#include "sim/network/schedules/exchange_schedule.hpp"

namespace moesim::network {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// Receives are posted ahead: a rank goes on when what it sends is sent, or, where the settings say
// so, when what it gets in that round is there too.
MessagePlan plan(const ExchangeRequest& request) {
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

}  // namespace

const ExchangeSchedule schedules::pairwise{
    .name = "pairwise",
    .help = "rank r sends to r+1, r+2, ... and does not wait for what it receives",
    .plan = plan,
};

}  // namespace moesim::network
