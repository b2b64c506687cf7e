#include "sim/cluster/cluster.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/shipped.hpp"

namespace moesim::cluster {

Cluster Cluster::load(const std::string& name_or_path) {
  return read(Document::load(find_document("clusters", name_or_path)));
}

Cluster Cluster::read(const Document& document) {
  document.validate(Document::load(find_document("schema", "cluster.schema")));
  const Node root = document.root();
  Cluster cluster;
  cluster.name = root.text("name");
  cluster.source = root.text("source");
  cluster.gpus_per_node = static_cast<int>(root.positive_integer("gpus_per_node"));
  cluster.gpus_per_domain = static_cast<int>(root.positive_integer("gpus_per_domain"));
  const double nics = static_cast<double>(root.positive_integer("nics_per_node"));
  const double bytes_per_nic = root.positive("nic_gbit_per_s") * 1e9 / 8;
  cluster.nic_per_gpu = Bandwidth(bytes_per_nic * nics / cluster.gpus_per_node);
  cluster.nic_efficiency = root.at("nic_efficiency").positive("value");
  cluster.nic_efficiency_low = root.at("nic_efficiency").positive("low");
  cluster.nic_efficiency_high = root.at("nic_efficiency").positive("high");
  cluster.efficiency_origin = root.at("nic_efficiency").text("origin");
  cluster.nic_latency_us = root.at("nic_latency_us").number("value");
  cluster.latency_origin = root.at("nic_latency_us").text("origin");
  if (cluster.nic_efficiency_low > cluster.nic_efficiency ||
      cluster.nic_efficiency_high < cluster.nic_efficiency) {
    root.fail("low and high must enclose value", "nic_efficiency");
  }
  const int smaller = std::min(cluster.gpus_per_node, cluster.gpus_per_domain);
  const int larger = std::max(cluster.gpus_per_node, cluster.gpus_per_domain);
  if (larger % smaller != 0) {
    root.fail(fmt::format("NVLink domains of {} GPUs do not fit nodes of {}",
                          cluster.gpus_per_domain, cluster.gpus_per_node),
              "gpus_per_domain");
  }
  return cluster;
}

}  // namespace moesim::cluster
