#pragma once

#include <string>
#include <vector>

#include "sim/step/kernels.hpp"

namespace moesim::step {

// One stage of an MoE layer and how long it takes on an idle machine, microseconds.
struct LayerStage {
  std::string name;
  profile::Estimate estimate;
};

// One MoE layer alone, balanced, dropless: k S / E rows per (source, expert), every stage after the
// one before. `exchange_counts` adds what libraries without padding do first: an all-gather of the
// counts, and (with the tokens) an all-to-all of one fp32 probability per row.
std::vector<LayerStage> moe_layer_stages(const Scenario& scenario, Pass pass, bool exchange_counts);

double total_us(const std::vector<LayerStage>& stages);

}  // namespace moesim::step
