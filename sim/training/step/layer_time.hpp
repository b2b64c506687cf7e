#pragma once

#include <array>

#include "sim/training/prices/layer_prices.hpp"

namespace moesim::training {

// What is timed of a transformer layer with experts: from the gate to the combined rows, as the
// layer tests of libraries have it, without the host; or all of the layer, with attention and
// waiting for the host.
enum class LayerExtent { moe, whole };

// One pass of the layer for one micro-batch on one rank: the parts, in microseconds. With
// drawn routing the mean over its layers, and over the steps of a trace, of the first micro-batch
// in the first set of ranks. Throws UsageError for a model without experts and as training_step().
PartTimes layer_time(const TrainingJob& job, LayerExtent extent, bool backward);

// Which parts of a job's step are exchanges that go through NICs: those of groups that span several
// domains, of gradients and parameters those of either group.
std::array<bool, part_names.size()> crossing_parts(const TrainingJob& job);

}  // namespace moesim::training
