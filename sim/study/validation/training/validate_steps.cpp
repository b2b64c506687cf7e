#include "sim/study/validation/training/validate_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/sweep/evaluate.hpp"
#include "sim/study/validation/training/calibrated_smartmoe.hpp"
#include "sim/study/validation/training/simulated_steps.hpp"
#include "sim/study/validation/training/smartmoe_rows.hpp"
#include "sim/study/validation/training/step_coverage.hpp"
#include "sim/uncertainty/published/error_model.hpp"

namespace moesim::study {
namespace {

constexpr const char* study_name = "smartmoe-steps";

struct Ratios {
  double lowest = 1e9;
  double highest = 0;
  void add(double ratio) {
    lowest = std::min(lowest, ratio);
    highest = std::max(highest, ratio);
  }
  bool any() const { return highest > 0; }
};

// The predicted steps, and what explains their errors.
class Summary {
 public:
  void add(const std::string& system, double measured_ms, double predicted_ms) {
    (system == "deepspeed" ? deepspeed_ : fastmoe_).add(measured_ms / predicted_ms);
    const double error = std::abs(predicted_ms / measured_ms - 1);
    sum_ += error;
    worst_ = std::max(worst_, error);
    ++count_;
  }
  int count() const { return count_; }
  std::vector<std::string> lines() const;

 private:
  Ratios deepspeed_;
  Ratios fastmoe_;
  double sum_ = 0;
  double worst_ = 0;
  int count_ = 0;
};

std::vector<std::string> Summary::lines() const {
  std::vector<std::string> lines = {
      fmt::format("{} steps: mean {:.0f} %, worst {:.0f} %, nothing fitted", count_,
                  sum_ / count_ * 100, worst_ * 100)};
  if (deepspeed_.any()) {
    lines.push_back(fmt::format(
        "DeepSpeed: measured / predicted is {:.2f} to {:.2f} over the capacity factors; as far as "
        "these agree the growth with capacity is right and the level is not. The profile's kernels "
        "are of 2025; the logs are of 2022, fp16, without flash attention, on NICs unknown to us "
        "(taken as DGX A100's)",
        deepspeed_.lowest, deepspeed_.highest));
  }
  if (fastmoe_.any()) {
    lines.push_back(
        fmt::format("FastMoE, without padding: measured / predicted is between {:.2f} and {:.2f}; "
                    "how skewed its "
                    "routing was under a balance loss is not in the logs",
                    fastmoe_.lowest, fastmoe_.highest));
  }
  return lines;
}

uncertainty::Observation observation_of(const CsvTable& table, std::size_t row,
                                        const scenario::Scenario& scenario, double measured_ms,
                                        double predicted_ms) {
  uncertainty::Observation seen;
  seen.subject.software = fmt::format("smartmoe-ae {}", table.text(row, "system"));
  seen.subject.machine = scenario.profile->device().name;
  seen.subject.model = scenario.model->name;
  seen.configuration = table.text(row, "capacity_factor");
  if (scenario.router.padding == routing::Padding::capacity) seen.layout = "padded";
  seen.log_ratio = std::log(measured_ms / predicted_ms);
  return seen;
}

// Rows of `steps`, and their observations.
void add_steps(const std::vector<SimulatedStep>& steps, Validation& validation,
               std::vector<uncertainty::Observation>& observations) {
  std::map<std::string, int> refused;
  for (const SimulatedStep& step : steps) {
    if (!step.refusal.empty()) {
      ++refused[step.refusal];
      continue;
    }
    validation.rows.push_back({study_name, step.subject, "check", "ms", step.measured_ms,
                               step.predicted_ms, step.predicted_ms / step.measured_ms - 1,
                               std::nullopt, step.observation.subject.software});
    observations.push_back(step.observation);
  }
  for (const auto& [why, count] : refused) {
    validation.verdicts.push_back(
        {study_name, fmt::format("{} configurations left out: {}", count, why), std::nullopt});
  }
}

void write_residuals(const std::vector<uncertainty::Observation>& observations,
                     const std::string& path) {
  uncertainty::Residuals residuals = uncertainty::summarised(observations);
  residuals.name = "steps";
  residuals.source =
      "Zeng et al. 2024 (arXiv:2402.12399), logs of thu-pacman/SmartMoE-AE (error figures alone), "
      "performance pages of NVIDIA-NeMo/Megatron-Bridge (Apache-2.0), MooreThreads/SimuMax v1.2";
  residuals.regenerate = "moesim validate steps --data FOLDER --residuals FILE";
  std::vector<uncertainty::ResidualGroup> blind = residuals.groups;
  std::erase_if(blind, [](const uncertainty::ResidualGroup& group) {
    return uncertainty::is_profile(group.subject.software);
  });
  residuals.components = uncertainty::fitted_components(blind);
  write_file_atomically(path, residuals.text());
}

}  // namespace

Validation validate_steps(const std::string& folder, scenario::DocumentCache& documents,
                          routing::RoutingCache& cache, const std::string& residuals_out) {
  const CsvTable table = CsvTable::load(folder + "/smartmoe_gpt_step_times.csv");
  Validation validation{"Training steps of a GPT-MoE on 16 A100 by capacity factor",
                        "logs of thu-pacman/SmartMoE-AE (medians of 200 iterations)",
                        {},
                        {}};
  Summary summary;
  std::vector<uncertainty::Observation> observations;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const double measured = table.positive(row, "median_ms");
    const SmartMoeRow mapped = smartmoe_row(table, row);
    const std::string& subject = mapped.subject;
    if (!mapped.refusal.empty()) {
      validation.verdicts.push_back(
          {study_name,
           fmt::format("{} ({:.0f} ms) left out: {}", subject, measured, mapped.refusal),
           std::nullopt});
      continue;
    }
    const scenario::Scenario scenario = scenario::resolve(mapped.options, documents);
    const Outcome outcome = evaluate(scenario, cache);
    const double error = outcome.step_ms / measured - 1;
    const auto part = [&](StepPart name) {
      return outcome.parts_ms[static_cast<std::size_t>(name)];
    };
    validation.rows.push_back(
        {study_name, subject, "check", "ms", measured, outcome.step_ms, error, std::nullopt,
         fmt::format("exposed exchange {:.0f}, experts {:.0f}, dispatch and combine {:.0f}, "
                     "gradients {:.0f} ms",
                     part(StepPart::exposed_exchange), part(StepPart::expert),
                     part(StepPart::dispatch_combine), part(StepPart::gradient))});
    summary.add(table.text(row, "system"), measured, outcome.step_ms);
    observations.push_back(observation_of(table, row, scenario, measured, outcome.step_ms));
  }
  if (summary.count() == 0) {
    throw Error(fmt::format("{}/smartmoe_gpt_step_times.csv: no row can be simulated", folder));
  }
  for (const std::string& line : summary.lines()) {
    validation.verdicts.push_back({study_name, line, std::nullopt});
  }
  add_calibrated_smartmoe(folder, table, documents, cache, validation);
  if (std::filesystem::exists(folder + "/moe_training_steps.csv")) {
    add_steps(simulated_training_rows(folder, documents, cache), validation, observations);
    add_steps(simulated_speeds(documents, cache), validation, observations);
    if (!residuals_out.empty()) {
      add_steps(calibrated_speeds(documents, cache), validation, observations);
    }
  }
  report_step_coverage(observations, validation);
  if (!residuals_out.empty()) write_residuals(observations, residuals_out);
  return validation;
}

}  // namespace moesim::study
