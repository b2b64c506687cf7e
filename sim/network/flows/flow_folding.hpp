#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/network/flows/flow_table.hpp"

namespace moesim::network {

// A partition of flows and links in which
//   flows of one class have the same bytes, enter at the same time, and pass the same number of
//     links of every class of links;
//   links of one class have the same capacity and carry the same number of flows of every class.
// Then flows of one class behave identically. Proof: by induction over the events. At an event the
// flows of a class have the same bytes left, so all or none of them are under way. Give each flow
// the rate that its class gets in the quotient: one link per class of links, on which each class of
// flows counts as often as on any link of that class. The sum over a link of rates min(x, m_f) is
// the same for all links of a class and equal to the quotient's, hence so are levels; the rates
// satisfy the equations of MaxMin, whose solution is unique. So the flows of a class have the same
// bytes left at the next event. (Such a partition is called equitable; cf. color refinement.)
struct Folding {
  struct Class {
    std::int64_t bytes = 0;
    std::int64_t entry = 0;
    std::vector<Hop> route;  // classes of links, each once, with the flows of this class on a link
  };
  std::vector<double> capacity;  // [class of links]
  std::vector<Class> classes;
  std::vector<std::uint32_t> class_of;  // [flow]
};

// The coarsest such partition, found by refining colors and then checked exactly; nothing when it
// would have more than half as many classes as there are flows.
std::optional<Folding> fold(const FlowTable& flows);

}  // namespace moesim::network
