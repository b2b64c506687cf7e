#include "tools/moesim/rows/host_times.hpp"

#include <fmt/format.h>

namespace moesim::tool {

void add_given_host(const training::HostCosts& host, NamedCells& row) {
  std::string given;
  const auto add = [&](const char* column, bool assumed) {
    if (!assumed) given += fmt::format("{}{}", given.empty() ? "" : " ", column);
  };
  add("launch_us", host.assumes_launch);
  add("host_read_us", host.assumes_read);
  add("step_overhead_ms", host.assumes_step);
  if (!given.empty()) row.add(given_host_column, Cell(given));
}

std::string assumed_host_text(const training::HostCosts& host) {
  const double step_ms = host.step_us / 1e3;
  if (!host.assumes_launch) {
    return host.assumes_step ? fmt::format("{:g} ms of the host per step, ", step_ms) : "";
  }
  return fmt::format("{:g} us of the host per kernel launched, {}", host.launch_us,
                     host.assumes_step ? fmt::format("{:g} ms per step, ", step_ms) : "");
}

}  // namespace moesim::tool
