#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"
#include "sim/network/ports/bound_refiner.hpp"
#include "sim/network/ports/link_load.hpp"
#include "sim/network/ports/port_bound.hpp"
#include "sim/network/ports/port_bound_kernels.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// Bounds bursts on one topology in O(N^2) additions, without allocating after the first call.
//
// Notation: link L has capacity c_L and carries n_L flows of W_L bytes in all; T_L = W_L / c_L is
// its time alone, k_L = n_L / c_L the time per byte of a fair share while all its flows are there.
//
// Lower bounds. A link passes no more than c_L, so its last flow ends no earlier than T_L after
// the first enters; and the same for those of its flows alone that start at some time or later. For
// one flow f when all enter together: max-min gives every flow g at least the least fair share of
// its route, 1 / k_g with k_g = max over its links of k_L (n_L only falls). With k the largest k_g
// of L's flows and M their largest size, g has therefore passed at least b_g min(1, t / (k M)) of
// its bytes by t, and what is left of L's capacity bounds f:
//     c_L t >= b_f + (W_L - b_f) t / (k M)   at the end t <= k M of f,
// hence t >= b_f / (c_L - (W_L - b_f) / (k M)). (Where every size is M and k = k_L this is T_L.)
//
// Upper bounds. At any time f has a bottleneck: a saturated link of its route on which no flow is
// faster than f. Let x_L be the bytes f passes while L is its bottleneck; the sum over L is b_f.
// Meanwhile every other flow of L passes at most x_L, and L passes c_L per second, so that time is
// at most min(n_L x_L, W_L) / c_L = min(k_L x_L, T_L), whenever the others start and end. So
//     t_f <= max { sum over L of min(k_L x_L, T_L) : sum of x_L = b_f },
// solved by filling the links of the largest k_L first, each up to the mean size W_L / n_L.
// Corollaries: t_f <= b_f max k_L, and a burst between ports alone takes at most twice its bound.
//
// A link above ports that together have no more bandwidth than it is left out: their capacities
// imply its own, so that the rates are the same without it.
//
// The two meet, so that the bound is exact, where the largest flow of the busiest link sees equal
// sizes there and no link of larger k on its way: uniform matrices, padded dispatch, columns of
// one size each (zipf1 of an expert's popularity), one dominant port, a full leaf uplink.
class PortBounder {
 public:
  // Keeps a reference: `topology` must outlive it. Throws Error as check(topology) does.
  explicit PortBounder(const Topology& topology);

  // Whether start times are as given or may be later: then only what holds for later ones too.
  enum class Starts { known, at_least };
  void starts_are(Starts starts) { starts_ = starts; }

  // `start` is when each source begins to send: one per rank, or empty for all at 0. Throws
  // UsageError for a matrix or starts of another size than the topology, or bytes below 0, Error
  // for bounds beyond the end of simulated time.
  void bound(const ByteMatrix& bytes, std::span<const Picoseconds> start, PortBound& result);
  PortBound bound(const ByteMatrix& bytes, std::span<const Picoseconds> start = {}) {
    PortBound result;
    bound(bytes, start, result);
    return result;
  }

  // Narrows the bounds that bound() gave for the same exchange, at some hundred times its cost and
  // much less than that of flows; nothing to do where they are exact: BoundRefiner.
  void refine(const ByteMatrix& bytes, std::span<const Picoseconds> start, PortBound& bound);

 private:
  // Destinations [begin, end) that a source reaches over the same plane and tiers. Only links that
  // can be full before all ports below them are count as tiers.
  struct Run {
    int begin = 0;
    int end = 0;
    bool inner = false;
    int first_above = 0;  // of above_, `above` links of tiers
    int above = 0;
  };
  // The same by rank, for one plane's ports: what the inner loops read.
  struct Ports {
    std::vector<int> link;
    std::vector<std::int64_t> bytes, flows;
    std::vector<double> largest;
    std::vector<double> rate;  // bytes per ps
    std::vector<double> first, last, ends;
    std::vector<double> per_byte, alone, mean, left, own;
    void resize(std::size_t ranks);
    void clear();
  };
  struct PlanePorts {
    Ports up, down;
    std::vector<int> above;  // all links of the plane's tiers
    double latency = -1;     // of all its ways, ps; -1 while none is known
    bool same_latency = true;
    bool together = false;  // all messages enter at one time
  };
  // When a source's messages of one run enter.
  struct Entry {
    double first = 0;
    double last = 0;
  };

  // Topologies have entries that are no links where nothing passes: their load is loads_'s last.
  bool is_link(int link) const { return link >= 0 && link < no_link_; }
  void plan_plane(const Plane& plane, PlanePorts& ports);
  void plan_runs();
  void plan_way(int source, int destination, std::vector<int>& above);
  const double* latencies_from(int source) const {
    return latencies_.data() + static_cast<std::size_t>(source) * latency_stride_;
  }
  void plan_entries(std::span<const Picoseconds> start);
  void add_loads(const ByteMatrix& bytes, std::span<const Picoseconds> start);
  void add_run(const std::int64_t* row, int source, const Run& run, double start);
  Entry add_entries(const std::int64_t* row, int source, const Run& run, double start);
  void add_ports();
  void settle_loads();
  double slowest(const std::vector<int>& links) const;
  void raise_slowest(const std::vector<int>& links, double share);
  void settle_ports(Ports& ports) const;
  void bound_flows(const ByteMatrix& bytes, std::span<const Picoseconds> start);
  Reach bound_run(const std::int64_t* row, int source, const Run& run, double start);
  Reach bound_run_above(const std::int64_t* row, int source, const Run& run, double start);

  const Topology& topology_;
  const BoundKernels* kernels_;
  bool any_amount_ = false;  // some amount is too large for the fast kernels
  int no_link_;
  std::vector<Run> runs_;
  std::vector<std::size_t> first_run_;  // [rank + 1]
  std::vector<int> above_;              // links of tiers
  std::vector<bool> nonbinding_;        // [link]: of a tier, and never full before the ports below
  std::vector<double> latencies_;       // [source * latency_stride_ + destination], ps
  std::size_t latency_stride_ = 0;      // 0 where all sources have the same
  std::vector<LinkLoad> loads_;         // [link], and one that carries nothing
  std::vector<int> latest_first_;       // sources by their start
  PlanePorts inner_, outer_;
  BoundRefiner refiner_;
  Starts starts_ = Starts::known;
  const std::int64_t* limit_ = nullptr;          // the end of the matrix
  std::int64_t bits_ = 0;                        // set in any cell of the matrix
  std::vector<double> rank_lower_, rank_upper_;  // ps
};

}  // namespace moesim::network
