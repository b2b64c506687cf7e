#include "sim/study/validation/training/simulated_steps.hpp"

#include <fmt/format.h>

#include <cmath>

#include "sim/base/error.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/sweep/evaluate.hpp"
#include "sim/study/validation/paper/calibrate.hpp"
#include "sim/study/validation/training/training_rows.hpp"

namespace moesim::study {
namespace {

using uncertainty::Observation;

constexpr const char* speeds_study = "zeng2024-speeds";
constexpr const char* calibrated_profile = "a100-sxm-80gb-deepspeed";

// Whether `simulate` knows such a step.
bool is_simulated(const TrainingRow& row) {
  if (!row.refusal.empty() || row.job.states.precision != model::Precision::bf16) return false;
  const parallel::ParallelLayout& sizes = row.job.layout.sizes;
  return sizes.tensor == 1 && sizes.context == 1 && sizes.pipeline == 1 &&
         sizes.expert_tensor == 1 && row.job.capacity_factor <= 0;
}

scenario::OptionValues options_of(const TrainingRow& row) {
  const parallel::LayoutRequest& layout = row.job.layout;
  scenario::OptionValues options = {
      {"profile", row.job.profile->name()},
      {"cluster", row.job.cluster->name},
      {"model", row.job.model->name},
      {"gpus", fmt::format("{}", layout.sizes.gpus)},
      {"expert-parallel", fmt::format("{}", layout.sizes.expert)},
      {"micro-batch", fmt::format("{}", layout.micro_batch)},
      {"global-batch", fmt::format("{}", layout.global_batch)},
      {"sequence-length", fmt::format("{}", layout.sequence_length)},
      {"routing", "gaussian:0"},
      {"overlap", "gradient"},
      {"replicas", "1"},
  };
  if (row.job.dispatcher) options["dispatcher"] = row.job.dispatcher->name;
  return options;
}

bool counts(const StudyRow& row) {
  return (row.published.role == RowRole::fit || row.published.role == RowRole::check) &&
         row.published.tokens_per_s_per_gpu.has_value();
}

// `speed`: predicted, tokens/s per GPU.
SimulatedStep step_of(const StudyRow& row, const std::string& software, double speed) {
  constexpr double tokens = 1e6;
  const scenario::Scenario& scenario = row.scenario;
  SimulatedStep step;
  step.measured_ms = tokens / *row.published.tokens_per_s_per_gpu * 1e3;
  step.predicted_ms = tokens / speed * 1e3;
  step.subject =
      fmt::format("{} at CF {}, {}", scenario.router.name(), scenario.router.capacity_factor.text(),
                  name_in(scenario::mode_names, scenario.mode));
  Observation& seen = step.observation;
  seen.subject = {software, scenario.profile->device().name, scenario.model->name, false};
  seen.configuration = step.subject;
  if (scenario.router.pads_exchange()) seen.layout = name_in(scenario::mode_names, scenario.mode);
  seen.log_ratio = std::log(step.measured_ms / step.predicted_ms);
  return step;
}

}  // namespace

std::vector<SimulatedStep> simulated_training_rows(const std::string& folder,
                                                   scenario::DocumentCache& documents,
                                                   routing::RoutingCache& cache) {
  std::vector<SimulatedStep> found;
  for (const TrainingRow& row : load_training_rows(folder)) {
    if (!is_simulated(row)) continue;
    SimulatedStep step;
    try {
      const scenario::Scenario scenario = scenario::resolve(options_of(row), documents);
      step.predicted_ms = evaluate(scenario, cache).step_ms;
    } catch (const Error& error) {
      step.refusal = error.what();
    }
    step.measured_ms = row.measured_s * 1e3;
    step.subject = fmt::format("{}: {}, {} x {}, EP {}", row.id, row.model,
                               row.job.layout.sizes.gpus, row.system, row.job.layout.sizes.expert);
    Observation& seen = step.observation;
    seen.subject = {row.software(), row.job.profile->device().name, row.job.model->name, false};
    // All that describes it but the release, which is the last cell.
    for (std::size_t cell = 0; cell + 1 < row.cells.size(); ++cell) {
      seen.configuration += row.cells[cell] + "|";
    }
    if (step.refusal.empty()) seen.log_ratio = std::log(step.measured_ms / step.predicted_ms);
    found.push_back(std::move(step));
  }
  return found;
}

std::vector<SimulatedStep> simulated_speeds(scenario::DocumentCache& documents,
                                            routing::RoutingCache& cache) {
  std::vector<SimulatedStep> found;
  for (const StudyRow& row : uncalibrated(PublishedStudy::load(speeds_study), documents, cache)) {
    if (counts(row)) found.push_back(step_of(row, "zeng2024", row.uncalibrated_tokens_per_s));
  }
  return found;
}

std::vector<SimulatedStep> calibrated_speeds(scenario::DocumentCache& documents,
                                             routing::RoutingCache& cache) {
  std::vector<SimulatedStep> found;
  const StudyResult result = calibrate(PublishedStudy::load(speeds_study), documents, cache);
  for (const StudyRow& row : result.rows) {
    const std::optional<double> error = row.left_out_error ? row.left_out_error : row.error;
    if (!counts(row) || !error) continue;
    found.push_back(step_of(row, uncertainty::profile_software(calibrated_profile),
                            *row.published.tokens_per_s_per_gpu * (1 + *error)));
  }
  return found;
}

}  // namespace moesim::study
