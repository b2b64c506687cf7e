#pragma once

#include <string>
#include <vector>

#include "sim/training/job/training_job.hpp"

namespace moesim::study {

// A measured training configuration of data/moe_training_steps.csv.
struct TrainingRow {
  std::string id;
  std::string source;  // "Megatron-Bridge perf summary 26.06"
  std::string family;  // of software: its first word
  std::string model;
  std::string system;
  std::string precision;
  std::string options;             // dispatcher, overlap, graphs, layout of stages
  std::vector<std::string> cells;  // all that describes the configuration, by column of the table
  double measured_s = 0;           // of a step
  double simumax_s = 0;            // SimuMax's own prediction; 0: none
  training::TrainingJob job;
  std::string refusal;  // why it cannot be predicted; "": it can

  std::string software() const;  // the family in lower case, as Subject has it
};

// One row for each configuration, in the order of the table; those without a measured step are left
// out. Throws UsageError naming file, line and column.
std::vector<TrainingRow> load_training_rows(const std::string& folder);

}  // namespace moesim::study
