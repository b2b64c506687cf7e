#include "sim/profile/device.hpp"

namespace moesim::profile {

namespace {

// Each figure is {"value", "unit", "origin", "source"}: a figure without its source is not one.
double figure(const Node& node, const std::string& key) {
  const Node entry = node.at(key);
  entry.text("source");
  return entry.positive("value");
}

std::int64_t whole_figure(const Node& node, const std::string& key) {
  figure(node, key);
  return node.at(key).positive_integer("value");
}

}  // namespace

Device Device::read(const Node& node) {
  Device device;
  device.name = node.text("name");
  device.sms = whole_figure(node, "sms");
  device.hbm_bytes = Bytes(whole_figure(node, "hbm_bytes"));
  device.hbm_bandwidth = Bandwidth(figure(node, "hbm_bytes_per_second"));
  device.l2_bytes = Bytes(whole_figure(node, "l2_bytes"));
  device.peak_bf16_flops = figure(node, "peak_bf16_flops");
  if (node.has("sustained_bf16_flops")) {
    device.sustained_bf16_flops = figure(node, "sustained_bf16_flops");
  }
  if (node.has("sustained_fp8_flops")) {
    device.sustained_fp8_flops = figure(node, "sustained_fp8_flops");
  }
  if (node.has("sustained_fp8_block_flops")) {
    device.sustained_fp8_block_flops = figure(node, "sustained_fp8_block_flops");
  }
  if (node.has("sustained_padding_share")) {
    device.sustained_padding_share = figure(node, "sustained_padding_share");
  }
  if (node.has("nvlink_bytes_per_second")) {
    device.nvlink_bandwidth = Bandwidth(figure(node, "nvlink_bytes_per_second"));
  }
  for (const char* link : {"pcie_bytes_per_second", "c2c_bytes_per_second"}) {
    if (node.has(link)) device.host_bandwidth = Bandwidth(figure(node, link));
  }
  if (node.has("host_copy_bytes_per_second")) {
    device.host_copy_bandwidth = Bandwidth(figure(node, "host_copy_bytes_per_second"));
  }
  device.gpus_per_node = whole_figure(node, "gpus_per_node");
  if (node.has("usual_cluster")) device.usual_cluster = node.document("usual_cluster", "clusters");
  return device;
}

}  // namespace moesim::profile
