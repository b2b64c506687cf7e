#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "sim/cluster/cluster.hpp"
#include "sim/network/ports/switch_limits.hpp"
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
// The buffer of the exchange inside the fullest domain that is part of one of `bytes`.
double bytes_inside(profile::Collective kind, const Span& span, double bytes);

// What the law between domains itself is off by, as a share of the time. Chosen among 8, 9, 10 and
// 12 % so that the bands hold 85 to 95 % of the public rows between nodes; no other rows have
// checked it.
inline constexpr double law_error = 0.08;

// The time of a collective on idle links: inside a domain (GPUs that reach each other without a
// NIC: a node, or a rack of them) the profile's measured size curve, between domains the law of
// node_crossing.hpp on the GPU's share of the NICs.
//   all-to-all      a NIC carries the (P - n) / P of the buffer of each member behind it that is
//                   bound for other domains, n being the members of its own
//   all-gather, reduce-scatter
//                   rings: (P - 1) / P of the buffer over the NICs of the domain with the fewest
//   all-reduce      rings: twice that; trees: tree_turns(N) of the buffer over the NICs of one of
//                   N domains
// The NICs of a domain are those behind its members, or the members' shares of them where other
// senders are behind (Senders). So no answer is below what the bytes that must enter or leave any
// domain need on its NICs. Inside, the fullest domain decides. Behind PCIe the bytes of an
// all-to-all inside the node and on its NICs move at the same time.
//
// What the cluster document has measured goes before: among as many GPUs on as many nodes its curve
// answers. Curves of other numbers of nodes correct the law by half of what it is off there, at the
// same bytes on a NIC (half, as public machines measured on several numbers of nodes suggest), to
// 20 % either way, wider by half for each factor of two in nodes and in size from what was measured
// on the nearest number, whose own band is never wider.
class PortModel {
 public:
  PortModel(std::shared_ptr<const profile::Profile> profile,
            std::shared_ptr<const cluster::Cluster> cluster);

  // `bytes` > 0 is nccl-tests' per-rank buffer. One member is no communication: Error. What crosses
  // domains is marked assumed; its quantiles add the independent errors of the NICs' efficiency, of
  // the start, of the part inside and of the law, each at its own quantile, in quadrature. Nobody
  // published an all-reduce between nodes, and which algorithm runs depends on version and settings
  // (NVLS may be off): its upper end has the difference to another algorithm among these errors,
  // and of the NICs' efficiency what that one or the fastest takes longer, whichever is more. Of an
  // algorithm that takes more than 1.3 times as long it reaches so far alone. Both ends of rings
  // and trees rise with bytes, slower NICs, slower links inside and more domains.
  profile::Estimate price(profile::Collective kind, std::span<const int> members, double bytes,
                          Senders senders = Senders::members) const;

  // How a collective that leaves its domain is carried out.
  struct Crossed {
    profile::Estimate estimate;
    const char* algorithm = "";  // "ring, LL"
    const char* next = "";       // of an all-reduce what the upper end reaches to; "": nothing
    double inside_us = 0;        // the part inside the fullest domain by itself
    double start_us = 0;         // of the crossing, as node_crossing.hpp has it
    double stream_us = 0;        // the bytes on the busiest NIC
    double nic_share = 1;        // of the NICs' efficiency that they reach
    std::string measured;        // what of the cluster was measured; "": nothing that bears on it
  };
  // The same with its parts. Precondition: the members lie in several domains. `peers`: those that
  // a rank sends to over its NIC in an all-to-all; absent: all of other domains.
  Crossed across(profile::Collective kind, std::span<const int> members, double bytes,
                 std::optional<int> peers = std::nullopt, Senders senders = Senders::members) const;
  // Whether what was measured among as many GPUs on as many nodes answers for these: not where
  // others take part of their NICs.
  const cluster::MeasuredExchange* measured(profile::Collective kind, std::span<const int> members,
                                            Senders senders) const;

 private:
  struct Inside;
  struct Law;
  // Whose error bars the figures of the NICs have: as the cluster knows them, or at least those of
  // links that nobody measured.
  enum class Links { of_cluster, unmeasured };
  Inside inside(profile::Collective kind, const Span& span, double bytes) const;
  Crossed by_law(profile::Collective kind, std::span<const int> members, double bytes,
                 std::optional<int> peers, Senders senders, Links links) const;
  void correct(profile::Collective kind, std::span<const int> members, double bytes,
               Senders senders, Crossed& crossed) const;

  std::shared_ptr<const profile::Profile> profile_;
  std::shared_ptr<const cluster::Cluster> cluster_;
};

}  // namespace moesim::network
