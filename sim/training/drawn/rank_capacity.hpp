#pragma once

#include <string>
#include <vector>

#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// The law of the rows that the ranks of a step's MoE layers get, without capacity: tokens choose
// independently by the popularity of experts in their layer, which all micro-batches and groups
// share. A rank's rows are normal, with the variance of choices without replacement
// (CountDistribution) and the skewness of a binomial count; ranks of a group are taken as
// independent.
class RankRowsLaw {
 public:
  // Precondition: job.routing. Throws UsageError with rank_rows_refusal().
  explicit RankRowsLaw(const TrainingJob& job);

  // P(a rank has more than `rows` rows) in one layer, micro-batch and block of ranks, mean
  // over layers (for tests); and anywhere in a step.
  double overflow_chance_of_one(double rows) const;
  double overflow_chance(double rows) const;
  // The least number of rows with overflow_chance() of at most `chance`, in (0, 1).
  double rows_for(double chance) const;

 private:
  struct Rank {
    double mean = 0;
    double deviation = 0;
    double skewness = 0;
  };
  double log_fits(const std::vector<Rank>& ranks, double rows) const;

  std::vector<std::vector<Rank>> layers_;
  double blocks_ = 0;  // of a layer: micro-batches x blocks of a stage
  double most_rows_ = 0;
};

// Why that law does not know the routing of a job: routers, sources and few tokens are not drawn by
// counts. Empty where it does. Precondition: job.routing.
std::string rank_rows_refusal(const TrainingJob& job);

// Rows of the buffer of a rank: floor(budget x balance), rounded up to a multiple of what the
// fused grouped FFN takes (Megatron-Core, paged_stash.md).
double rank_capacity_rows(const TrainingJob& job);
double rank_capacity_load(const TrainingJob& job);  // the same over balance

// What a buffer of fixed size costs. If a rank overflows anywhere, the step runs again, dropless,
// with the host's reads and without graphs of layers, which are then captured anew.
struct RankCapacityFigures {
  double rows = 0;                  // of the buffer
  double load = 0;                  // over balance
  double overflow_chance = 0;       // of a step
  double load_for_one_percent = 0;  // that one step in a hundred overflows
  double static_step_us = 0;        // without overflow
  double rerun_us = 0;              // what an overflow adds, capture included
  double capture_us = 0;            // all layers of a rank launched once by the host (assumed)
};

}  // namespace moesim::training
