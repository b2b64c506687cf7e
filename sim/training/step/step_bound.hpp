#pragma once

#include <span>
#include <vector>

#include "sim/base/units.hpp"
#include "sim/training/drawn/drawn_loads.hpp"
#include "sim/training/prices/layer_prices.hpp"

namespace moesim::training {

// What the step_us of training_step() cannot be below, from the prices of its layers, without
// running the schedule of its pipeline. `prices`: of the same job, or of one that differs from it
// in the pipeline's chunks, ZeRO below 2, the overlap of experts and the global batch alone.
//
// For each pipeline rank: the forward passes of the stages before its first, all passes of its own,
// the gradients back to the first stage, with their messages; that is exact for 1f1b and
// interleaved pipelines of equal stages. Where exchanges run beside compute, all of them are taken
// to be hidden. Behind the last backward pass the optimizer and the host are counted.
// Precondition: parallel::layout_refusal() has nothing against the layout.
//
// `least`: what the MoE layers take at least: one for all of them, or each, chunk by chunk, behind
// the layers of a chunk those of its prediction depths; none: what `prices` says.
double step_bound_us(const TrainingJob& job, const LayerPrices& prices,
                     std::span<const Passes> least = {});

// Bounds of one MoE layer whose load is at least `load`: the price of that, less 5 % of what
// depends on rows: products are not quite monotonic in their rows.
Passes least_moe_layer(const LayerPrices& prices, const MoeLoad& load,
                       model::AttentionKind attention = model::AttentionKind::softmax);
// Bounds of all MoE layers of a model, as step_bound_us() wants them.
std::vector<Passes> least_moe_layers(const LayerPrices& prices, const MoeLoad& load,
                                     const model::Model& model);

// What the MoE layers of a job with drawn routing take, as step_bound_us() wants them. `prices`: of
// the job. With its own loads, drawn per layer, that is exact; with others it is at least that:
// `loads` are then no more than its own in every layer, or differ between micro-batches.
std::vector<Passes> drawn_moe_layers(const LayerPrices& prices, const DrawnLoads& loads,
                                     bool are_own);

// What the peak_memory() of training_step() cannot be below: as many passes as the schedule holds
// at least, all of the chunk that makes the least. Same precondition. `loads`: the job's own; null:
// forced_load() in every layer.
Bytes memory_bound(const TrainingJob& job, const DrawnLoads* loads = nullptr);

}  // namespace moesim::training
