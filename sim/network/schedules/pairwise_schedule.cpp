#include <vector>

#include "sim/network/schedules/exchange_schedule.hpp"

#include "sim/base/numbers.hpp"

namespace moesim::network {
namespace {

// Receives are posted ahead: a rank goes on when what it sends is sent.
MessagePlan plan(const ExchangeRequest& request) {
  MessagePlan plan;
  const int ranks = request.bytes.ranks();
  std::vector<int> last;  // [rank] its latest step
  for (int rank = 0; rank < ranks; ++rank)
    last.push_back(plan.add_join(request.start[index_of(rank)]));
  for (int shift = 1; shift < ranks; ++shift) {
    for (int rank = 0; rank < ranks; ++rank) {
      const int peer = (rank + shift) % ranks;
      const int message = plan.add(rank, peer, request.bytes.at(rank, peer));
      plan.wait(message, last[index_of(rank)]);
      last[index_of(rank)] = message;
    }
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
