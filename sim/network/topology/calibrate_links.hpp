#pragma once

#include <algorithm>
#include <vector>

#include "sim/base/units.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// Links whose exchanges take measured times: a document's bandwidths times a factor.

// The links of a plane, each once.
std::vector<int> links_of(const Plane& plane);
void scale(Topology& topology, const std::vector<int>& links, double factor);
// The NICs, to that share of the bandwidth they have.
void scale_nics(Topology& topology, double share);
// Sets the latency of a path through a plane: half on the link up, the rest on the link
// down.
void set_port_latency(Topology& topology, const Plane& plane, Picoseconds path_latency);

// The measured time of an exchange. Its latency is that of the smallest one; where a curve falls
// below it, one hundredth of the time is left for the bytes.
struct MeasuredTime {
  double time_us = 0;
  double smallest_us = 0;
  double latency_us() const { return std::min(smallest_us, 0.99 * time_us); }
};
// An exchange inside a domain whose busiest link needs `link_us` for its bytes then takes that
// time.
void calibrate_inside(Topology& topology, double link_us, const MeasuredTime& time);

}  // namespace moesim::network
