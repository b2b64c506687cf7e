#pragma once

#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "sim/uncertainty/ratios/capacity_ratio.hpp"
#include "sim/uncertainty/steps/assumed_moves.hpp"
#include "tools/moesim/bands/unmeasured_pair.hpp"

namespace moesim::tool {

// What the ratio of a step to another one, elsewhere, depends on.
struct StepElsewhere {
  std::vector<double> parts;  // uncertainty::part_times()
  UnmeasuredOfRow unmeasured;
  std::string all_but_machine;             // of written_step.hpp
  bool low_precision = false;              // not bf16; machines alone
  uncertainty::AssumedMoves moves;         // the same
  uncertainty::StepExchanges exchanges{};  // clusters alone
};

// The band of log(measured / predicted ratio), and what it is known by.
struct KnownRatio {
  uncertainty::Band band;
  std::string known_by;
};

// Of steps on two kinds of GPU: StepErrors::machine_ratio_band(). `software`: published, or "".
KnownRatio compare_machines(const std::string& software, const StepElsewhere& step,
                            const StepElsewhere& other);

// Of steps on GPUs of one kind in two clusters: the errors of their exchanges, and of pairs of
// steps where more than the cluster differs. `same`: what is the same in the former case.
KnownRatio compare_clusters(const std::string& software, const StepElsewhere& step,
                            const cluster::Cluster& cluster, const StepElsewhere& other,
                            const cluster::Cluster& other_cluster, const std::string& same);

}  // namespace moesim::tool
