#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/cell.hpp"
#include "sim/training/drawn/shared_draws.hpp"
#include "sim/training/step/training_step.hpp"
#include "sim/uncertainty/bands/loss_band.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// What a step with drawn routing loses, and how sure that is. Of all: `loss_band` is
// requested_loss_band() of the step, `step` that of `job`.

// study::training_loss_band() of the step of a line; of several --replicas, whose mean loss the
// step has, the standard error is that of the mean. `shared`: as there.
std::optional<uncertainty::LossBand> requested_loss_band(
    const CommandLine& line, const training::TrainingJob& job, const training::TrainingStep& step,
    int threads, const training::DrawProgress& progress = {},
    training::SharedDraws* shared = nullptr);

// Adds the lines of the text: the token loss with its band, and what the model's own router does
// not choose. Precondition: job.routing.
void add_loss_lines(const training::TrainingJob& job, const training::TrainingStep& step,
                    const std::optional<uncertainty::LossBand>& loss_band,
                    std::vector<std::vector<std::string>>& lines);

// "31.6 % of the peak with the kept routes alone": what the text says below MFU; "" where none is
// dropped.
std::string kept_mfu_text(const training::TrainingJob& job, const training::TrainingStep& step);

// Columns of a row behind all others: MFU over kept routes, and the band of residual_loss. None
// with forced balance, which draws no routing; blank where there is no band.
std::vector<std::pair<std::string, Cell>> loss_cells(
    const training::TrainingJob& job, const training::TrainingStep& step,
    const std::optional<uncertainty::LossBand>& loss_band);

}  // namespace moesim::tool
