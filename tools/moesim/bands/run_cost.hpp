#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/cell.hpp"
#include "sim/training/step/training_step.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// What a training run takes at the speed of a predicted step, in all or, where its tokens are not
// said, for 1e12 of them.
struct RunCost {
  std::optional<double> tokens;  // that the run trains on
  std::optional<double> price;   // of a GPU hour, in any currency

  double gpu_hours(const training::TrainingStep& step) const;
  double days(const training::TrainingStep& step) const;
  double money(const training::TrainingStep& step) const;  // precondition: price
};

// Of all GPUs, at the speed of the step.
double tokens_per_day(const training::TrainingStep& step);

// --train-tokens and --gpu-hour-price.
std::vector<Flag> run_cost_flags();
// Throws UsageError for a value that is no number above 0, and for one beyond any run.
RunCost requested_run_cost(const CommandLine& line);

// The values of --gpu-hour-price for several machines, as many as were typed: one for all, one for
// each of `profiles`, or one for each of `machines`, which are profiles on several clusters. None
// where it is not typed. Throws UsageError for another number of them, and for what is no price.
std::vector<std::string> prices_of_each(const CommandLine& line, std::size_t profiles,
                                        std::size_t machines);

// Throws UsageError where the run has fewer tokens than one step.
void check_run(const RunCost& cost, double tokens_per_step);

// "for 15 trillion tokens", "per 1e12 tokens".
std::string run_text(const RunCost& cost);
// "660,630 GPU hours for 15 trillion tokens, 860.2 days; 1,321,260 at 2 a GPU hour".
std::string cost_text(const RunCost& cost, const training::TrainingStep& step);
// One figure of a run's cost, as tables and sentences print it.
struct CostFigure {
  std::string name;  // "GPU hours", "days", "cost"
  double value = 0;
  std::string (*text)(double) = nullptr;
};
// GPU hours, then days where the run's tokens are said, then what it costs where the price is.
std::vector<CostFigure> cost_figures(const RunCost& cost, const training::TrainingStep& step);
// The columns of a row that were asked for: tokens and days of the run, its cost; both also at the
// ends of a band of times, `low` and `high` times the step's.
std::vector<std::pair<std::string, Cell>> cost_cells(const RunCost& cost,
                                                     const training::TrainingStep& step, double low,
                                                     double high);

}  // namespace moesim::tool
