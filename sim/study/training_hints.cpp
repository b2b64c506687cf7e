#include "sim/study/training_hints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "sim/base/error.hpp"
#include "sim/study/search/training_space.hpp"
#include "sim/training/step/job_rules.hpp"
#include "sim/training/step/step_bound.hpp"

namespace moesim::study {
namespace {

using training::TrainingJob;

constexpr int most_tensor_ranks = 8;
constexpr int highest_zero = 3;

// Drawn routing has rules of its own, such as the fewest tokens of a GPU: none where they refuse
// it.
std::optional<training::TrainingStep> step_of(const TrainingJob& job) {
  try {
    return training::training_step(job, nullptr, false);
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

class Trials {
 public:
  Trials(const TrainingJob& job, const training::TrainingStep& step, Bytes room)
      : job_(job), speed_(step.tokens_per_second_per_gpu), room_(room) {}

  // True if the changed job can be, fits, and is noted as such. It trains on as many sequences per
  // step as the job: the default batch of another layout is another step.
  bool tries(std::string options, const std::function<void(TrainingJob&)>& change) {
    TrainingJob changed = job_;
    change(changed);
    const std::int64_t sequences = job_.layout.sequences();
    changed.layout.global_batch = sequences;
    if (parallel::layout_refusal(*changed.model, changed.layout)) return false;
    if (training::option_refusal(changed) || training::expert_load_refusal(changed)) return false;
    if (training::memory_bound(changed).count > room_.count) return false;
    const std::optional<training::TrainingStep> drawn = step_of(changed);
    if (!drawn) return false;
    const training::TrainingStep& step = *drawn;
    if (step.peak_memory().count > room_.count) return false;
    if (has_other_default_batch(changed.layout)) {
      options += fmt::format(" --global-batch {}", sequences);
    }
    found.push_back({options, step.peak_memory(), step.tokens_per_second_per_gpu / speed_});
    return true;
  }

  std::vector<TrainingHint> found;

 private:
  // Without --global-batch a change of sizes would change the batch, too.
  bool has_other_default_batch(parallel::LayoutRequest changed) const {
    changed.global_batch = job_.layout.global_batch;
    return changed.sequences() != job_.layout.sequences();
  }

  const TrainingJob& job_;
  double speed_;
  Bytes room_;
};

void recompute_as(TrainingJob& job, const model::Recompute& recompute) {
  job.recompute = recompute;
  job.layout.recomputes_experts = recompute.recomputes_experts();
}

// Sizes that are twice, four times, ... that of the job, up to the first that is enough.
void try_sizes(Trials& trials, const char* option, int size, int most,
               int parallel::ParallelLayout::*member) {
  for (int larger = 2 * size; larger <= most; larger *= 2) {
    if (trials.tries(fmt::format("--{} {}", option, larger),
                     [&](TrainingJob& job) { job.layout.sizes.*member = larger; })) {
      return;
    }
  }
}

}  // namespace

std::vector<TrainingHint> training_hints(const TrainingJob& job, const training::TrainingStep& step,
                                         Bytes room) {
  Trials trials(job, step, room);
  const std::vector<model::Recompute> recomputations = usual_recompute(*job.model);
  for (const model::Recompute& recompute : recomputations) {
    const std::string name = model::name_of(recompute);
    if (name == "none" || name == model::name_of(job.recompute)) continue;
    if (trials.tries(fmt::format("--recompute {}", name),
                     [&](TrainingJob& changed) { recompute_as(changed, recompute); })) {
      break;
    }
  }
  for (int zero = job.states.zero + 1; zero <= highest_zero; ++zero) {
    if (trials.tries(fmt::format("--zero {}", zero),
                     [&](TrainingJob& changed) { changed.states.zero = zero; })) {
      break;
    }
  }
  const bool has_wide_moments = job.states.moment_bytes > 2;
  if (has_wide_moments) {
    trials.tries("--optimizer-moments bf16",
                 [](TrainingJob& changed) { changed.states.moment_bytes = 2; });
  }
  for (std::int64_t sequences = job.layout.micro_batch / 2; sequences >= 1; sequences /= 2) {
    if (trials.tries(fmt::format("--micro-batch {}", sequences),
                     [&](TrainingJob& changed) { changed.layout.micro_batch = sequences; })) {
      break;
    }
  }
  const parallel::ParallelLayout& sizes = job.layout.sizes;
  if (job.model->moe) {
    try_sizes(trials, "expert-parallel", sizes.expert, job.model->moe->experts,
              &parallel::ParallelLayout::expert);
  }
  try_sizes(trials, "tensor-parallel", sizes.tensor, most_tensor_ranks,
            &parallel::ParallelLayout::tensor);
  if (!job.layout.stages) {
    try_sizes(trials, "pipeline-parallel", sizes.pipeline, job.model->layers,
              &parallel::ParallelLayout::pipeline);
  }
  if (trials.found.empty()) {
    std::string options = "--recompute full";
    if (has_wide_moments) options += " --optimizer-moments bf16";
    if (job.states.zero < 2) options += " --zero 2";
    trials.tries(options, [&](TrainingJob& changed) {
      recompute_as(changed, recomputations.back());
      changed.states.moment_bytes = std::min(changed.states.moment_bytes, 2);
      changed.states.zero = std::max(changed.states.zero, 2);
    });
  }
  std::stable_sort(
      trials.found.begin(), trials.found.end(),
      [](const TrainingHint& one, const TrainingHint& other) { return one.speed > other.speed; });
  return trials.found;
}

}  // namespace moesim::study
