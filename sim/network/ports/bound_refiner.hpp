#pragma once

#include <span>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"
#include "sim/network/ports/link_load.hpp"
#include "sim/network/ports/port_bound.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// What PortBounder::bound() has found out about the links of a topology.
struct BoundedLinks {
  std::span<const LinkLoad> loads;      // [link], and one that carries nothing
  const std::vector<bool>& nonbinding;  // [link]: of a tier, and never full before the ports below
};

// Narrower bounds of a burst from what is certain about its course. In the notation of
// port_bounder.hpp, rounds of:
//   A flow g that has certainly ended by e_g counts on its links before e_g only. With m_L(t) the
//   flows of L that may still be there at t, g's rate is at least r_g(t) = min over its links of
//   c_L / m_L(t); that it has passed all its bytes at this rate is a new e_g, if earlier.
// At last, what flows have certainly passed by t bounds the others of a link from below: f has not
// ended while c_L (t - first) < b_f + sum over others g of min(b_g, integral of r_g to t).
// Times are cut into `grid` steps; m_L of a step is that of its beginning.
class BoundRefiner {
 public:
  // Keeps a reference: `topology` must outlive it.
  explicit BoundRefiner(const Topology& topology) : topology_(topology) {}

  // Narrows the bounds that PortBounder::bound() gave for the same exchange.
  void refine(const ByteMatrix& bytes, std::span<const Picoseconds> start,
              const BoundedLinks& links, PortBound& bound);

 private:
  // All flows with something to send, and the steps of time.
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
    std::vector<double> passed;  // [link][step]: certainly by the beginning of the step
  };
  static constexpr int grid = 128;
  void list_flows(const ByteMatrix& bytes, std::span<const Picoseconds> start,
                  const BoundedLinks& links);
  void start_from(const PortBound& bound, const BoundedLinks& links);
  double narrow_upper(double begin, double end);
  void set_grid(double begin, double end);
  void least_rates(std::size_t flow);
  double latest_end(std::size_t flow) const;
  void add_passed(std::size_t flow);
  double longest_duration(std::size_t flow, const BoundedLinks& links) const;
  void note_ends(const BoundedLinks& links, PortBound& bound);

  const Topology& topology_;
  Flows flows_;
  Grid grid_;
  std::vector<double> rate_;  // [step] of one flow: the least it gets
};

}  // namespace moesim::network
