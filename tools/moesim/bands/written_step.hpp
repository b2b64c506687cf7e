#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/training/step/training_step.hpp"
#include "sim/uncertainty/ratios/capacity_ratio.hpp"
#include "sim/uncertainty/ratios/software_ratio.hpp"
#include "sim/uncertainty/steps/assumed_moves.hpp"
#include "tools/moesim/bands/unmeasured_pair.hpp"

namespace moesim::tool {

// What `train` wrote of one step, as far as the ratio to another step depends on it.
struct WrittenStep {
  std::string model;  // as typed, as profile and cluster
  std::string profile;
  std::string cluster;
  std::string software;  // published, or a document of one's own; "": not said
  std::string precision;
  double gpus = 0;
  double speed = 0;           // tokens per second and GPU
  std::vector<double> parts;  // uncertainty::part_times(); empty: the file does not tell
  UnmeasuredOfRow unmeasured;
  std::string all_but_machine;  // see below
  std::optional<std::string> all_but_capacity;
  std::optional<uncertainty::OwnStep> own;  // of one's own software, where the file tells
  // Of its cluster; nothing: that is not known here, or the file does not tell the layout.
  std::optional<uncertainty::StepExchanges> exchanges;
  std::optional<uncertainty::AssumedMoves> moves;  // nothing: the file does not tell
};

// The step of a file that `train --format csv` or json wrote, FILE or FILE:ROW. `beside`: the
// cluster of the step that is compared with it. Throws UsageError naming the file: no such row,
// several without ROW, or without what every version wrote.
WrittenStep read_written_step(const std::string& path, const cluster::Cluster& beside);

// What a row says of a step but profile and cluster: equal for steps that differ in these alone.
// Drawn routing is the same where all its options are, the seed among them.
std::string all_but_machine(const training::TrainingJob& job, const training::TrainingStep& step);

}  // namespace moesim::tool
