#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"
#include "sim/network/ports/port_bound_kernels.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// What is certain about a burst (all messages of a byte matrix at once, max-min shares) without
// simulating it. Times count from the origin of the start times.
struct PortBound {
  Picoseconds lower;   // the makespan is no less: the busiest link's bytes over its bandwidth
  Picoseconds upper;   // and no more
  bool exact = false;  // lower and upper meet, but for the rounding of picoseconds
  // For each rank, the later of its last byte sent and received; 0 for a rank without messages,
  // which the makespan does not count either.
  std::vector<Picoseconds> rank_lower, rank_upper;

  // How far `lower` can be off: upper / lower - 1; 0 for an exchange of nothing.
  double slack() const;
};

// Bounds bursts on one topology in O(N^2) additions, without allocating after the first call.
//
// Notation: link L has capacity c_L and carries n_L flows of W_L bytes in all; T_L = W_L / c_L is
// its time alone, k_L = n_L / c_L the time per byte of a fair share while all its flows are there.
//
// Lower bounds. A link passes no more than c_L, so its last flow ends no earlier than T_L after
// the first enters; and the same for those of its flows alone that start at some time or later. For
// one flow f when all enter together: max-min gives every flow g at least
// the least fair share of its route, 1 / k_g with k_g = max over its links of k_L (n_L only falls).
// With k the largest k_g of L's flows and M their largest size, g has therefore passed at least
// b_g min(1, t / (k M)) of its bytes by t, and what is left of L's capacity bounds f:
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
  // much less than that of flows; nothing to do where they are exact. Rounds of:
  //   A flow g that has surely ended by e_g counts on its links before e_g only. With m_L(t) the
  //   flows of L that may still be there at t, g's rate is at least r_g(t) = min over its links of
  //   c_L / m_L(t); that it has passed all its bytes at this rate is a new e_g, if earlier.
  // At last, what flows have surely passed by t bounds the others of a link from below: f has not
  // ended while c_L (t - first) < b_f + sum over others g of min(b_g, integral of r_g to t).
  // Times are cut into `grid` steps; m_L of a step is that of its beginning.
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
  // What the flows of one link add up to. Times in picoseconds.
  struct Load {
    std::int64_t bytes = 0;
    std::int64_t flows = 0;
    double largest = 0;  // bytes
    double first = 0;    // the earliest and the latest a flow enters
    double last = 0;
    double ends = 0;      // no earlier, as far as its bytes go
    double per_byte = 0;  // k_L
    double alone = 0;     // T_L
    double mean = 0;      // W_L / n_L
    double slowest = 0;   // the largest k of the links on its flows' ways, or more
    double left = 0;      // c_L - W_L / (k M), and
    double own = 0;       // 1 / (k M): a flow of b bytes takes at least b / (left + own b)
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
  void plan_nonbinding(const Plane& plane);
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

  // refine(): all flows with something to send, and the steps of time.
  struct Flows {
    std::vector<double> bytes, enters, upper;
    std::vector<int> first_link;  // [flow], of `links`, up to the next flow's
    std::vector<int> links;
    std::vector<int> source, destination;
  };
  struct Grid {
    double begin = 0;
    double step = 0;
    std::vector<double> share;   // [link][step]: c_L / m_L, bytes per ps
    std::vector<double> passed;  // [link][step]: surely by the beginning of the step
  };
  static constexpr int grid = 128;
  void list_flows(const ByteMatrix& bytes, std::span<const Picoseconds> start);
  void set_grid(double begin, double end);
  void least_rates(std::size_t flow);
  double surely_ends(std::size_t flow) const;
  void add_passed(std::size_t flow);
  double surely_lasts(std::size_t flow) const;

  Flows flows_;
  Grid grid_;
  std::vector<double> rate_;  // [step] of one flow: the least it gets

  const Topology& topology_;
  const BoundKernels* kernels_;
  int no_link_;
  std::vector<Run> runs_;
  std::vector<std::size_t> first_run_;  // [rank + 1]
  std::vector<int> above_;              // links of tiers
  std::vector<bool> nonbinding_;        // [link]: of a tier, and never full before the ports below
  std::vector<double> latencies_;       // [source * latency_stride_ + destination], ps
  std::size_t latency_stride_ = 0;      // 0 where all sources have the same
  std::vector<Load> loads_;             // [link], and one that carries nothing
  std::vector<int> latest_first_;       // sources by their start
  PlanePorts inner_, outer_;
  Starts starts_ = Starts::known;
  const std::int64_t* limit_ = nullptr;          // the end of the matrix
  std::int64_t bits_ = 0;                        // set in any cell of the matrix
  std::vector<double> rank_lower_, rank_upper_;  // ps
};

}  // namespace moesim::network
