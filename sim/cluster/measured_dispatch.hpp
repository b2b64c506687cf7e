#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/formats/document.hpp"

namespace moesim::cluster {

// The measured time of one exchange of an MoE layer's rows by a dispatcher (DeepEP, ...) on this
// cluster: every GPU with as many tokens, experts drawn evenly.
struct MeasuredDispatch {
  std::string dispatcher;  // a document of profiles/dispatchers: "deepep"
  std::string stage;       // "dispatch" or "combine"
  std::string row_format;  // "bf16" or "fp8"
  int nodes = 1;
  int gpus = 2;  // gpus / nodes on each node
  std::int64_t tokens = 1;
  std::int64_t hidden = 1;
  std::int64_t top_k = 1;
  std::int64_t experts = 1;
  int sms = 0;         // of its kernels; 0: no choice
  double time_us = 0;  // without the notify phase
  std::string origin;  // "measured: ..."
  std::string gpu;     // that it was measured on: "H100"; "": not stated
};

// The key "dispatches" of a cluster document, empty if absent. Throws UsageError naming file and
// key: GPUs that do not divide over the nodes or exceed gpus_per_node on each, more nodes than the
// cluster has (`nodes`, 0: any number), experts that do not divide over the GPUs or are fewer than
// k.
std::vector<MeasuredDispatch> read_measured_dispatches(const Node& cluster, int gpus_per_node,
                                                       int nodes);

// The same checks of gpus and nodes as measured exchanges have; they name `node` and its keys.
void check_measured_place(const Node& node, int measured_nodes, int gpus, int gpus_per_node,
                          int nodes);

}  // namespace moesim::cluster
