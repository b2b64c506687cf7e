#include "sim/profile/node_links.hpp"

#include <algorithm>
#include <cstdint>

namespace moesim::profile {

namespace {

constexpr double us_per_second = 1e6;
constexpr std::int64_t most_gpus = 1024;  // that one NVLink domain could join, and more

}  // namespace

bool NodeLinks::join(int count) const {
  if (count > gpus || kind == Kind::unknown) return false;
  return kind == Kind::nvlink_switch || group > 0;
}

NodeLinks NodeLinks::read(const Node& topology, const Node& device) {
  NodeLinks links;
  const std::string kind = topology.text("kind");
  links.gpus = static_cast<int>(
      std::min<std::int64_t>(topology.positive_integer("gpus_per_node"), most_gpus));
  if (kind == "pcie") {
    links.kind = Kind::pcie;
    if (const auto rate = topology.find("group_bytes_per_second")) {
      links.group = topology.count("gpus_per_group");
      links.group_bytes_per_us = topology.positive("group_bytes_per_second") / us_per_second;
    }
  } else if (kind == "nvswitch" || kind == "nvlink") {
    links.kind = Kind::nvlink_switch;
    links.port_bytes_per_us =
        device.at("nvlink_bytes_per_second").positive("value") / us_per_second;
    links.switch_reduces = topology.boolean_or("switch_reduces", false);
  }
  return links;
}

}  // namespace moesim::profile
