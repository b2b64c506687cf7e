#pragma once

#include <limits>
#include <span>
#include <utility>

#include "sim/cluster/cluster.hpp"
#include "sim/profile/collective.hpp"
#include "sim/profile/moe_exchange_law.hpp"

namespace moesim::network {

// What the switches above the NICs allow, where a switch has less bandwidth up than its NICs below.

// Whether a switch of the fabric has less bandwidth up than the NICs below it.
bool has_less_above(const cluster::Cluster& cluster);

// Who sends through NICs and switches at the same time: the members of an exchange alone, or with
// them the first GPUs of each domain, which a job is placed on.
struct Senders {
  int per_domain = 0;  // 0: the members alone

  static const Senders members;
  static const Senders all_below;  // all GPUs of each domain
};
inline constexpr Senders Senders::members{0};
inline constexpr Senders Senders::all_below{std::numeric_limits<int>::max()};

// How long the busiest way up or down needs, at the NICs' efficiency, for each byte of the buffer
// (nccl-tests' size) of a collective among these GPUs, us; 0 where no switch has less up than
// below.
//   all-to-all   blocks of buffer / P; on rails, where GPUs of a node reach each other over NVLink,
//                a block crosses between nodes on the rail of its destination (NCCL's PXN)
//   the others   rings: domain by domain, one for each member of the smallest domain, each of
//                which passes (P - 1) / P of its share of the buffer (all-reduce: twice) from a
//                domain to the next; trees, balanced over the nodes, pass no less
// The senders below a switch that are no members exchange as much at the same time, as the groups
// of a training step do: members have their share of the uplinks.
double us_per_byte_above(profile::Collective kind, std::span<const int> members,
                         const cluster::Cluster& cluster, Senders senders = Senders::members);

// The bytes per second that a GPU of a dispatcher's group sends to other domains if the switches
// have no more: its share of the NICs, or where the group's domains lie below several switches, its
// share of the ways up over the share of its bytes that take them. Domains of a group are taken to
// be neighbours, and all GPUs below a switch to send as much. Dispatchers send between GPUs of the
// same place in their nodes, so that bytes stay on their rail.
double dispatch_nic_rate(const cluster::Cluster& cluster, const profile::DispatchGroup& group);

// The bytes per second of the slowest message where each of these GPUs sends one to its partner at
// the same time, at the NICs' line rate: a GPU's share of the NICs or, between switches, of the
// uplink. Messages inside a domain do not count; without others the share of the NICs. What goes
// the other way at the same time is not counted.
double message_nic_rate(const cluster::Cluster& cluster,
                        std::span<const std::pair<int, int>> messages);

}  // namespace moesim::network
