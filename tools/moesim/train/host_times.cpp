#include "tools/moesim/train/host_times.hpp"

#include <fmt/format.h>

namespace moesim::tool {

void add_given_host(const training::HostCosts& host, NamedCells& row) {
  std::string given = host.assumes_launch ? "" : "launch_us";
  if (!host.assumes_read) given += given.empty() ? "host_read_us" : " host_read_us";
  if (!given.empty()) row.add(given_host_column, Cell(given));
}

std::string assumed_host_text(const training::HostCosts& host) {
  const double step_ms = host.step_us / 1e3;
  if (!host.assumes_launch) return fmt::format("{:g} ms of the host per step", step_ms);
  return fmt::format("{:g} us of the host per kernel launched, {:g} ms per step", host.launch_us,
                     step_ms);
}

}  // namespace moesim::tool
