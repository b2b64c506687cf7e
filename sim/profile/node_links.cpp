#include "sim/profile/node_links.hpp"

namespace moesim::profile {

namespace {

constexpr double us_per_second = 1e6;

}  // namespace

NodeLinks NodeLinks::read(const Node& topology, const Node& device) {
  NodeLinks links;
  const std::string kind = topology.text("kind");
  if (kind == "pcie") {
    links.kind = Kind::pcie;
    if (const auto rate = topology.find("group_bytes_per_second")) {
      links.group = static_cast<int>(topology.positive_integer("gpus_per_group"));
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
