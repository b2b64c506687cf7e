#pragma once

#include <memory>
#include <span>

#include "sim/cluster/cluster.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::network {

// How the GPUs of one exchange lie on the cluster.
struct Span {
  int gpus = 0;            // members
  int domains = 0;         // domains (nodes, where these are no larger) that hold at least one
  int largest_share = 0;   // members of the fullest domain
  int smallest_share = 0;  // members of the emptiest domain that holds any
};
Span span_of(std::span<const int> members, const cluster::Cluster& cluster);

// The time of an exchange on idle links, from two port bandwidths per GPU: inside a domain (GPUs
// that reach each other without a NIC: a node, or a rack of them) the profile's measured size curve
// of the collective, between domains the GPU's share of the NICs at the cluster's efficiency. Both
// ports work at the same time, so the slower one decides:
//   all-to-all      a NIC carries the (P - n) / P of the buffer of each member behind it that is
//                   bound for other domains, n being the members of its own
//   all-gather, reduce-scatter
//                   the NICs of a domain carry (P - n) / P of the buffer (n / P the other way): of
//                   N domains of n, each NIC (N - 1) / N of a 1/n share, as in two-level rings
//   all-reduce      2 (N - 1) / N of the buffer through the NICs of each of N domains
// The NICs of a domain are those behind its members; the worst domain decides. So no answer is
// below what the bytes that must enter or leave any domain need on its NICs. Inside, the fullest
// domain decides.
// The levels of an all-to-all are independent. Those of the others depend on each other, piece by
// piece: that they overlap is assumed, and the 95 % quantile is no less than one after the other.
// Across, plus one fabric latency per message round: N - 1 for rings, 1 for the all-to-all.
class PortModel {
 public:
  PortModel(std::shared_ptr<const profile::Profile> profile,
            std::shared_ptr<const cluster::Cluster> cluster);

  // `bytes` > 0 is nccl-tests' per-rank buffer. One member is no communication: Error. The NIC
  // part is marked assumed, its quantiles are those of the cluster's efficiency range.
  profile::Estimate price(profile::Collective kind, std::span<const int> members,
                          double bytes) const;

 private:
  double busiest_nic(profile::Collective kind, std::span<const int> members) const;
  profile::Estimate nic_part(profile::Collective kind, std::span<const int> members,
                             double bytes) const;

  std::shared_ptr<const profile::Profile> profile_;
  std::shared_ptr<const cluster::Cluster> cluster_;
};

}  // namespace moesim::network
