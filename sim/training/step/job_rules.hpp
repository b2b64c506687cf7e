#pragma once

#include <optional>
#include <string>

#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// The first rule beside those of layouts (parallel::layout_refusal) that a job breaks, as a
// sentence that names the option; nothing if it breaks none. Of rank capacity, optimizer instances,
// copies of experts, offloading, and where the ranks of a dispatcher lie. Precondition:
// parallel::layout_refusal() has nothing.
std::optional<std::string> option_refusal(const TrainingJob& job);

// Why --expert-load cannot be: a rank has no more rows than there are. Not a part of
// option_refusal(): loads that stand for padded blocks have no such bound.
std::optional<std::string> expert_load_refusal(const TrainingJob& job);

// Why --cuda-graphs cannot be, whatever the layout: layers are captured with the shapes that the
// host knows.
std::optional<std::string> graphs_refusal(const TrainingJob& job);

// Throws UsageError for a model with an encoder, whose memory no layout has: to be asked before
// check_job(), which would propose other sizes.
void check_decoder(const TrainingJob& job);

// Throws UsageError as check_ranges(), with option_refusal(), and as parallel::check_layout() for a
// layout that cannot be; with the nearest layouts that break no rule of either kind, and whose
// ranks the drawn routing fits.
void check_job(const TrainingJob& job);

}  // namespace moesim::training
