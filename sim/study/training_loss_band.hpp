#pragma once

#include <optional>

#include "sim/training/drawn/shared_draws.hpp"
#include "sim/training/step/training_step.hpp"
#include "sim/uncertainty/bands/loss_band.hpp"

namespace moesim::study {

// How sure the residual_loss of a training step with drawn routing is. LossBand::p05 and p95 hold
// that of one further step with 90 % chance; `error` is the standard error of the step's own as an
// estimate of the mean over many steps. LossBand::steps counts the step itself.
//
// Recorded steps, drawn per layer: loss_band() of these. Otherwise n steps are drawn in all, four
// to sixteen so that (n - 1) L reaches 64, with L layers, and layers are independent: the variance
// of a layer's loss is V = S^2 - (n - 1) / n v (1 / b - 1 / B), at least v / B, where S^2 is the
// variance between steps, mean over layers, v that of blocks inside a layer, and b and B are blocks
// of a further step and of this (training::FurtherLosses). A step's loss is their mean, and its
// arcsine normal: mean +- t sqrt(V / L + S^2 / (n L)), with Student's t of (n - 1) L degrees. Where
// one draw is common to all layers (routing burst, unknown, scores) it is loss_band() of 19 steps.
//
// Of a router whose tokens keep their ids from layer to layer 16 steps are drawn. Only ids differ
// between blocks and between steps, so the variance w of a block's mean over layers says all: of
// the m = 15 further steps with b blocks w is the mean of b times the variance of their means (m -
// 1 degrees of freedom) and of that between the blocks of a step (m (b - 1)). The mean over all
// blocks, +- t sqrt(w / B + w / (m b + B)).
//
// None for forced balance, for a trace drawn per micro-batch or of one step, all of which a step
// takes, and for the model's own router without a capacity, whose counted_loss is 0. A router that
// drops nothing and has no loss is sure of it: nothing is drawn.
//
// `step`: training_step() of `job`. `threads`: that draw. `shared`: what other steps draw alike;
// null: nothing. Throws as training::DrawnLoads.
std::optional<uncertainty::LossBand> training_loss_band(const training::TrainingJob& job,
                                                        const training::TrainingStep& step,
                                                        int threads,
                                                        const training::DrawProgress& progress = {},
                                                        training::SharedDraws* shared = nullptr);

}  // namespace moesim::study
