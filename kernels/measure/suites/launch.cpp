#include "kernels/measure/suites/launch.hpp"

namespace moesim::kernels::measure {

PointSpec host_copy_point(const char* direction, std::int64_t bytes) {
  PointSpec spec;
  spec.op = "host-copy";
  spec.params = {{"direction", direction}, {"memory", "pinned"}, {"bytes", bytes}};
  // For the estimate: PCIe has about an eighth of NVLink's bandwidth.
  spec.sent_bytes = 8 * static_cast<double>(bytes);
  spec.held_bytes = static_cast<double>(bytes);
  return spec;
}

namespace {

std::vector<PointSpec> launch_points(Ranks) {
  std::vector<PointSpec> points;
  for (const char* what : {launch_kernel, launch_queueing, launch_and_wait, launch_events}) {
    PointSpec spec;
    spec.op = "launch";
    spec.params = {{"what", what}};
    points.push_back(spec);
  }
  for (const char* direction : {copy_to_device, copy_to_host}) {
    for (std::int64_t bytes = 4; bytes <= std::int64_t{256} << 20; bytes *= 4) {
      points.push_back(host_copy_point(direction, bytes));
    }
  }
  return points;
}

}  // namespace

Suite launch_suite() {
  return {"launch",
          "an empty kernel, its launch and the wait for it, a pair of events, copies to the host",
          {},
          1,
          launch_points};
}

}  // namespace moesim::kernels::measure
