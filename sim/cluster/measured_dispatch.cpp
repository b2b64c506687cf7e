#include "sim/cluster/measured_dispatch.hpp"

#include <fmt/format.h>

namespace moesim::cluster {
namespace {

MeasuredDispatch read_dispatch(const Node& node, int gpus_per_node, int nodes) {
  MeasuredDispatch dispatch;
  dispatch.dispatcher = node.text("dispatcher");
  dispatch.stage = node.text("stage");
  dispatch.row_format = node.text_or("row_format", "bf16");
  dispatch.nodes = node.count("nodes");
  dispatch.gpus = node.count("gpus");
  check_measured_place(node, dispatch.nodes, dispatch.gpus, gpus_per_node, nodes);
  dispatch.tokens = node.positive_integer("tokens");
  dispatch.hidden = node.positive_integer("hidden");
  dispatch.top_k = node.positive_integer("k");
  dispatch.experts = node.positive_integer("experts");
  if (dispatch.experts % dispatch.gpus != 0) {
    node.fail(fmt::format("{} experts are not spread evenly over {} GPUs", dispatch.experts,
                          dispatch.gpus),
              "experts");
  }
  if (dispatch.top_k > dispatch.experts) {
    node.fail(fmt::format("{} of {} experts", dispatch.top_k, dispatch.experts), "k");
  }
  dispatch.sms = node.count_or("sms", 0);
  dispatch.time_us = node.positive("time_us");
  dispatch.origin = node.text("origin");
  dispatch.gpu = node.text_or("gpu", "");
  return dispatch;
}

}  // namespace

void check_measured_place(const Node& node, int measured_nodes, int gpus, int gpus_per_node,
                          int nodes) {
  if (nodes > 0 && measured_nodes > nodes) {
    node.fail(fmt::format("{} nodes, but the cluster has {}", measured_nodes, nodes), "nodes");
  }
  if (gpus < 2) node.fail("an exchange takes at least 2 GPUs", "gpus");
  if (gpus % measured_nodes != 0) {
    node.fail(fmt::format("{} GPUs cannot be spread evenly over {} nodes", gpus, measured_nodes),
              "gpus");
  }
  if (gpus / measured_nodes > gpus_per_node) {
    node.fail(fmt::format("{} GPUs on {} nodes, but a node has {} (gpus_per_node)", gpus,
                          measured_nodes, gpus_per_node),
              "gpus");
  }
}

std::vector<MeasuredDispatch> read_measured_dispatches(const Node& cluster, int gpus_per_node,
                                                       int nodes) {
  std::vector<MeasuredDispatch> dispatches;
  if (!cluster.has("dispatches")) return dispatches;
  for (const Node& node : cluster.items("dispatches")) {
    dispatches.push_back(read_dispatch(node, gpus_per_node, nodes));
  }
  return dispatches;
}

}  // namespace moesim::cluster
