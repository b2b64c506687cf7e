#include "sim/cluster/cluster.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/shipped.hpp"
#include "sim/cluster/measured_between.hpp"

namespace moesim::cluster {
namespace {

Efficiency read_efficiency(const Node& node) {
  Efficiency efficiency{node.positive("value"), node.positive("low"), node.positive("high"),
                        node.text("origin")};
  if (efficiency.low > efficiency.value || efficiency.high < efficiency.value) {
    node.fail("low and high must enclose value");
  }
  return efficiency;
}

NicStart read_start(const Node& node) {
  NicStart start{node.number("value"), node.number("low"), node.number("high"),
                 node.text("origin")};
  if (start.low > start.value || start.high < start.value) {
    node.fail("low and high must enclose value");
  }
  return start;
}

double figure(const Node& node, const std::string& key) { return node.at(key).number("value"); }

// The switches above ports of `port` line rate per GPU or node. `below` is the key that counts how
// many of these one switch has below it. `rails` switches stand side by side on the lowest level,
// each with its share of every node; the levels above join them.
std::vector<Level> read_levels(const Node& parent, const std::string& below, Bandwidth port,
                               int rails) {
  std::vector<Level> levels;
  if (!parent.has("levels")) return levels;
  double capacity = port.bytes_per_second;  // towards the next level, per GPU or node
  int smaller = 1;
  for (const Node& node : parent.items("levels")) {
    const int side_by_side = levels.empty() ? rails : 1;
    Level level;
    level.name = node.text("name");
    level.below = node.count(below);
    level.latency_us = figure(node, "latency_us");
    if (level.below % smaller != 0) {
      node.fail(fmt::format("{} is no multiple of the {} below a switch of the level before",
                            level.below, smaller),
                below);
    }
    if (node.has("gb_per_s") == node.has("oversubscription")) {
      node.fail("give either gb_per_s of one switch's way up, or its oversubscription");
    }
    level.uplink =
        node.has("gb_per_s")
            ? Bandwidth::gigabytes(figure(node, "gb_per_s"))
            : Bandwidth(capacity * level.below / side_by_side / figure(node, "oversubscription"));
    capacity = level.uplink.bytes_per_second * side_by_side / level.below;
    smaller = level.below;
    levels.push_back(level);
  }
  return levels;
}

void read_domain(const Node& node, Cluster& cluster) {
  cluster.gpus_per_domain = node.count("gpus");
  if (cluster.gpus_per_domain % cluster.gpus_per_node != 0) {
    node.fail(fmt::format("a domain of {} GPUs does not consist of whole nodes of {}",
                          cluster.gpus_per_domain, cluster.gpus_per_node),
              "gpus");
  }
  Domain& domain = cluster.domain;
  domain.kind = node.text("kind");
  domain.port = Bandwidth::gigabytes(figure(node, "gb_per_s"));
  domain.efficiency = read_efficiency(node.at("efficiency"));
  domain.latency_us = figure(node, "latency_us");
  domain.levels = read_levels(node, "gpus", domain.port, 1);
  if (!domain.levels.empty() && cluster.gpus_per_domain % domain.levels.back().below != 0) {
    node.at("levels").fail(fmt::format("switches of {} GPUs do not fit a domain of {}",
                                       domain.levels.back().below, cluster.gpus_per_domain));
  }
}

void read_nic(const Node& node, Cluster& cluster) {
  cluster.nics_per_node = node.count("per_node");
  const int smaller = cluster.ports_per_node();
  if (std::max(cluster.nics_per_node, cluster.gpus_per_node) % smaller != 0) {
    node.fail(fmt::format("{} NICs cannot be shared out evenly over {} GPUs", cluster.nics_per_node,
                          cluster.gpus_per_node),
              "per_node");
  }
  cluster.nic = Bandwidth(figure(node, "gbit_per_s") * 1e9 / 8);
  cluster.nic_per_gpu =
      Bandwidth(cluster.nic.bytes_per_second * cluster.nics_per_node / cluster.gpus_per_node);
  const Efficiency efficiency = read_efficiency(node.at("efficiency"));
  cluster.nic_efficiency = efficiency.value;
  cluster.nic_efficiency_low = efficiency.low;
  cluster.nic_efficiency_high = efficiency.high;
  cluster.efficiency_origin = efficiency.origin;
  cluster.nic_transport = node.text_or("transport", "");
  cluster.nic_latency_us = figure(node, "latency_us");
  cluster.latency_origin = node.at("latency_us").text("origin");
  if (const auto start = node.find("start")) cluster.nic_start = read_start(*start);
}

void read_fabric(const Node& node, Cluster& cluster) {
  if (cluster.nics_per_node == 0) node.fail("switches between nodes without a NIC to reach them");
  cluster.rails = node.text("layout") == "rails";
  const Bandwidth node_rate(cluster.nic.bytes_per_second * cluster.nics_per_node);
  cluster.levels =
      read_levels(node, "nodes", node_rate, cluster.rails ? cluster.ports_per_node() : 1);
}

}  // namespace

Cluster Cluster::load(const std::string& name_or_path) {
  return read(Document::load(find_document("clusters", name_or_path)));
}

Cluster Cluster::read(const Document& document) {
  const Node root = document.root();
  if (root.text_or("format", "") == "moesim cluster 1") {
    root.fail(
        "'moesim cluster 1' is read no longer: the keys are grouped into domain, nic and fabric "
        "now; start from a shipped document of 'moesim cluster 2'",
        "format");
  }
  document.validate("cluster.schema");
  Cluster cluster;
  cluster.name = root.text("name");
  cluster.source = root.text("source");
  cluster.file = document.name();
  cluster.gpu_name = root.text_or("gpu", "");
  cluster.profile = root.text_or("profile", "");
  cluster.nodes = root.count_or("nodes", 0);
  cluster.gpus_per_node = root.count("gpus_per_node");
  if (const auto domain = root.find("domain")) read_domain(*domain, cluster);
  if (const auto nic = root.find("nic")) read_nic(*nic, cluster);
  if (const auto fabric = root.find("fabric")) read_fabric(*fabric, cluster);
  if (!root.has("domain") && !root.has("nic")) {
    root.fail("GPUs reach each other through a domain or NICs, and neither is given");
  }
  cluster.exchanges = read_measured_exchanges(root, cluster.gpus_per_node, cluster.nodes);
  cluster.dispatches = read_measured_dispatches(root, cluster.gpus_per_node, cluster.nodes);
  for (const MeasuredExchange& measured : cluster.exchanges) {
    if (crosses_domains(cluster, measured.nodes) && cluster.nics_per_node == 0) {
      root.fail(fmt::format("{} over {} nodes, which no NIC connects", name_of(measured.operation),
                            measured.nodes),
                "exchanges");
    }
  }
  return cluster;
}

std::string Cluster::gpu_title(const std::string& device, const std::string& shown) const {
  return gpu_name.empty() || gpu_name == device ? shown : gpu_name + " with kernels of " + shown;
}

const MeasuredExchange* Cluster::measured(MeasuredOperation operation, int node_count, int gpus,
                                          const std::string& library) const {
  const MeasuredExchange* found = nullptr;
  for (const MeasuredExchange& exchange : exchanges) {
    if (exchange.operation == operation && exchange.nodes == node_count && exchange.gpus == gpus &&
        (library.empty() || exchange.library == library)) {
      found = &exchange;
    }
  }
  return found;
}

int Cluster::ports_per_node() const { return std::min(gpus_per_node, nics_per_node); }

int Cluster::nic_of(int gpu) const {
  const int local = gpu % gpus_per_node;
  return static_cast<int>(static_cast<long long>(local) * nics_per_node / gpus_per_node);
}

int Cluster::max_gpus() const {
  const int all = nodes * gpus_per_node;
  if (nics_per_node > 0) return all;
  return all > 0 ? std::min(all, gpus_per_domain) : gpus_per_domain;
}

}  // namespace moesim::cluster
