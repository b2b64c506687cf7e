#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/training/training_job.hpp"
#include "sim/training/training_step.hpp"
#include "sim/uncertainty/step_fit.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/predict/predict_source.hpp"

namespace moesim::tool {

// What a row of measured times may be of, as its column op says: "step" (or nothing), "moe-layer"
// and "layer" with a pass, and the exchanges of `predict`.
inline constexpr const char* step_op = "step";
std::vector<std::string> calibrated_operations();
// Of an operation. Throws UsageError for one that is none of the above.
uncertainty::RowKind row_kind_of(const std::string& op);
// The columns that rows of an operation take, beside those of every row.
std::set<std::string> columns_of(const std::string& op);

// What is predicted of a row.
struct RowPrediction {
  uncertainty::StepClasses classes;
  std::string machine;                       // of the profile's device
  std::string profile;                       // as it was asked for
  std::optional<training::TrainingJob> job;  // of steps and layers
  std::optional<training::TrainingStep> step;
};

// Predicts rows one after another.
class RowPredictor {
 public:
  // `asked`: the options of the row, by flag. Throws UsageError and Error as train and predict do.
  RowPrediction predict(const std::string& op, const CommandLine& asked);

 private:
  RowPrediction exchange(const std::string& op, const CommandLine& asked);
  const std::string& machine_of(const std::string& profile);

  std::map<std::string, QuerySource> sources_;  // by profile
  std::map<std::string, std::string> machines_;
};

}  // namespace moesim::tool
