#pragma once

#include <cstdint>

#include "kernels/measure/suites/suite.hpp"

namespace moesim::kernels::measure {

// op "launch", by its param "what":
constexpr const char* launch_kernel = "kernel";      // an empty kernel, one after another
constexpr const char* launch_queueing = "queueing";  // the host's time for each launch
constexpr const char* launch_and_wait =
    "launch-and-wait";                               // launched on an idle stream, waited for
constexpr const char* launch_events = "event-pair";  // nothing between two events

// op "host-copy", between pinned memory of the host and the device.
constexpr const char* copy_to_device = "to-device";
constexpr const char* copy_to_host = "to-host";
// `bytes` a multiple of four.
PointSpec host_copy_point(const char* direction, std::int64_t bytes);
// From this size on, what a copy holds is its rate.
constexpr std::int64_t long_copy_bytes = std::int64_t{64} << 20;

// What programs pay beside their kernels.
Suite launch_suite();

}  // namespace moesim::kernels::measure
