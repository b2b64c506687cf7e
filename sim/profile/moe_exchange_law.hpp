#pragma once

#include <cstdint>

#include "sim/profile/size_curve.hpp"

namespace moesim::profile {

// Exchanges of MoE layers by kernels of their own (DeepEP, TensorRT-LLM) on more nodes or GPUs than
// were measured. profiles/README.md quotes the errors and says what was looked at first.
//
// A curve here is time against tokens per rank: a SizeCurve whose "bytes" are tokens.

// What an exchange moves: each token goes to the `top_k` of `experts` it chose, as `token_bytes`.
struct MoeTraffic {
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  double token_bytes = 0;
};

// Of `groups` equal groups of experts (ranks, or nodes), how many a token reaches on average when
// its experts are drawn evenly without repetition: groups (1 - C(E - E / groups, k) / C(E, k)).
double distinct_groups(const MoeTraffic& traffic, int groups);

enum class MoeStage { dispatch, combine };

// The nodes to go to and the way between them.
struct NodeStep {
  int ranks_per_node = 8;  // of the measured node too
  int nodes = 2;
  double nic_bytes_per_us = 0;  // what one rank's NIC reaches, each direction
  double nic_latency_us = 0;    // of a message there and its notice
};

// DeepEP's normal kernels, microseconds, from the curve of one node. The copies that SMs handle
// grow: a dispatched token is staged for each node it visits and forwarded to each of its ranks
// there; a combined one is copied to the forwarding rank and again into its sum. A NIC carries a
// token once per other node. The slower decides.
double deepep_normal_us(const SizeCurve& one_node, const MoeTraffic& traffic, const NodeStep& step,
                        MoeStage stage, double tokens);

// DeepEP's low-latency kernels: each (token, expert) travels by itself, over the NIC if the expert
// is on another node; nothing is merged.
double deepep_low_latency_us(const SizeCurve& one_node, const MoeTraffic& traffic,
                             const NodeStep& step, double tokens);

// An MoE all-to-all inside one NVLink domain among `ranks`, from curves of `few` < `many` <
// `ranks`: a fixed part that any number of ranks takes and the copies that leave a rank, softly the
// slower of the two (T^3 = fixed^3 + copies^3); the floor grows by
// each doubling of the ranks as it did between the two. `balanced`: each token's experts are spread
// evenly over the ranks, so that it meets min(k, ranks) of them.
SizeCurve among_more_ranks(const SizeCurve& at_few, int few, const SizeCurve& at_many, int many,
                           int ranks, std::int64_t top_k);

}  // namespace moesim::profile
