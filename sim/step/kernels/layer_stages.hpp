#pragma once

#include <string>
#include <vector>

#include "sim/step/kernels/kernels.hpp"

namespace moesim::step {

// One stage of an MoE layer and how long it takes on an idle machine, microseconds.
struct LayerStage {
  std::string name;
  profile::Estimate estimate;
};

// One MoE layer as kernels/layer runs it, stage by stage of routing::moe_stages(): rows padded to
// `capacity` per (source, expert), a fused gate, capacity and weights one launch each, one-hot
// masks written once, IR rows after the others, and one wait of the host for the number of IR rows.
struct PaddedLayerRows {
  std::int64_t capacity = 0;  // per (source, expert)
  std::int64_t ir_rows = 0;
  double padding_share = 0;  // of the experts' rows: zeros
};
// Layers run back to back: the experts' products take at least what the device sustains of them
// within its power, where the profile says it.
std::vector<LayerStage> padded_layer_stages(const scenario::Scenario& scenario, Pass pass,
                                            const PaddedLayerRows& rows);

double total_us(const std::vector<LayerStage>& stages);

}  // namespace moesim::step
