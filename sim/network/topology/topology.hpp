#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "sim/base/units.hpp"

namespace moesim::network {

// One direction of a cable, or of a bundle of equal ones.
struct Link {
  std::string name;     // for messages: "node 3 NIC 0 up"
  Bandwidth bandwidth;  // what an exchange reaches: a line rate times its efficiency
  Picoseconds latency;
};

// The links a transfer passes, in order. Its latency is the sum of theirs.
class Route {
 public:
  static constexpr std::size_t max_links = 8;

  void push(int link) { links_[count_++] = link; }
  const int* begin() const { return links_.data(); }
  const int* end() const { return links_.data() + count_; }
  std::size_t size() const { return count_; }

 private:
  std::array<int, max_links> links_{};
  std::size_t count_ = 0;
};

// The switches of one level: which one a rank's traffic reaches there, and that switch's way up.
// Ranks of one switch meet there; others go on to the next tier.
struct Tier {
  std::vector<int> switch_of;  // [rank]
  std::vector<int> up, down;   // [switch], link index
};

// One way ranks reach each other (NVLink inside a domain, NICs and the fabric between nodes): every
// rank has a port, perhaps shared with others, and above the ports stand tiers of switches. Ranks
// whose ways have not met after the last tier meet in an ideal crossbar above it.
struct Plane {
  std::vector<int> port_up, port_down;  // [rank], link index
  std::vector<Tier> tiers;              // lowest first
};

// The links among the ranks of a job. Ranks of one domain use the inner plane, others the outer.
struct Topology {
  std::vector<Link> links;
  std::vector<int> domain_of;  // [rank]
  Plane inner;                 // empty when every domain has one rank
  Plane outer;                 // empty when there is one domain

  int ranks() const { return static_cast<int>(domain_of.size()); }
  bool same_domain(int source, int destination) const {
    return domain_of[static_cast<std::size_t>(source)] ==
           domain_of[static_cast<std::size_t>(destination)];
  }
  // Precondition: source != destination, both below ranks().
  Route route(int source, int destination) const;
  Picoseconds latency(const Route& route) const;
};

// Throws Error naming link or rank and reason unless every link has a positive, finite bandwidth
// and a non-negative latency, and every pair of ranks has a route. A table may be short, or its
// entries -1, for ranks that do not need it: no port inside a domain of one rank, none outside
// where there is one domain.
void check(const Topology& topology);

// [link]: whether it is an uplink of a switch, in either direction, with at least the bandwidth of
// all ports below it together, so that it never limits a flow. A port that several ranks share
// counts once.
std::vector<bool> nonbinding_uplinks(const Topology& topology);
// Whether that holds for all uplinks that a tier has.
bool all_nonbinding(const std::vector<bool>& nonbinding, const Tier& tier);

// Ideal shapes, for tests, benchmarks and documents of no product: every rank a full-duplex port
// on one crossbar; `latency` is that of each direction of a port.
Topology crossbar(int ranks, Bandwidth port, Picoseconds latency);

}  // namespace moesim::network
