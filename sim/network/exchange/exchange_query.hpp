#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/network/schedules/exchange_settings.hpp"
#include "sim/profile/collective.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::network {

// One exchange among GPUs of a cluster, as a user asks for it.
struct ExchangeQuery {
  profile::Collective collective = profile::Collective::all_to_all;
  std::vector<int> members;          // the GPU of each rank
  double bytes = 0;                  // nccl-tests' per-rank buffer, of equal blocks
  std::optional<ByteMatrix> matrix;  // of an all-to-all, in the place of `bytes`
  std::vector<Picoseconds> start;    // with a matrix: when each rank begins to send; empty: at 0
  // The name of an ExchangeSchedule of all-to-alls; ring, or tree of all-reduce; two-level of equal
  // blocks with a profile: its curve inside a domain, the law of NCCL between. "": two-level
  // where a profile is given and the network is automatic, else burst or ring.
  std::string schedule;
  Method network = Method::automatic;
  std::optional<double> distinct_share;  // of schedules that take it, in (0, 1]
  // Told of the steps of a simulation message by message, as ExchangeSettings::progress.
  std::function<void(std::size_t ended, std::size_t steps)> progress;
};

struct ExchangePrediction {
  profile::Estimate estimate;
  std::vector<double> rank_finish_us;
  std::string provenance;
  // The ends of the port bound: the time is certain to lie between them. Both 0 where it is exact.
  double lower_us = 0;
  double upper_us = 0;
  std::string schedule;  // that answered; "" for the profile's curve inside one domain
};

// Chooses what answers the query: the profile's curves, the port bound, or flows message by
// message, which one question is worth: `automatic` takes the bound only where it is exact. Without
// a profile nothing is calibrated. Throws UsageError, which begins with the name of the collective,
// for what does not go together and for simulations that would take hours.
ExchangePrediction predict_exchange(const ExchangeQuery& query,
                                    std::shared_ptr<const profile::Profile> profile,
                                    const std::shared_ptr<const cluster::Cluster>& cluster);

}  // namespace moesim::network
