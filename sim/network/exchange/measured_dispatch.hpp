#pragma once

#include <string>

#include "sim/cluster/cluster.hpp"
#include "sim/network/exchange/dispatch_place.hpp"
#include "sim/profile/dispatcher.hpp"

namespace moesim::network {

// The dispatcher as the cluster's own measurements (cluster::MeasuredDispatch) of it show it, on as
// many GPUs and nodes: each stage that was measured is scaled by measured over predicted time, of
// several (data formats, sizes) by the geometric mean, with the measured ones and 6 % either way as
// its band; `origin` of the machine then begins with "measured". The same dispatcher where nothing
// of it was measured there.
profile::Dispatcher with_measurements(const profile::Dispatcher& dispatcher,
                                      const DispatchPlace& place, const cluster::Cluster& cluster);

}  // namespace moesim::network
