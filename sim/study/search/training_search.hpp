#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/search/training_space.hpp"
#include "sim/training/training_step.hpp"

namespace moesim::study {

// Which training step is fastest among those of a space that fit in memory and lose few tokens.
struct TrainingSearch {
  TrainingSpace space;
  std::size_t best = 5;
  double memory_share = 0.9;  // of the GPU's, that a step may take; the rest is for libraries
  double max_loss = 0;        // share of the routing weight that tokens may lose
  double min_speed = 0;       // tokens per second and GPU
  // What tokens lose; absent: nothing. Called by one thread.
  std::function<double(const training::TrainingJob&)> loss;
  int jobs = 1;  // threads; the result does not depend on them
};

struct FoundStep {
  training::TrainingJob job;
  training::TrainingStep step;
  double loss = 0;
};

struct SearchCounts {
  std::size_t combinations = 0;  // layouts, possible or not
  std::size_t refused = 0;       // of them, by a rule
  std::size_t candidates = 0;    // possible jobs
  std::size_t too_large = 0;     // of them, known not to fit without a simulation
  std::size_t priced = 0;        // sets of layer prices
  std::size_t simulated = 0;
  std::size_t violations = 0;  // simulated below their bound: the order is then not proven
};

struct TrainingFound {
  std::vector<FoundStep> best;   // fastest first
  std::vector<FoundStep> front;  // of speed and loss, fastest first: each loses less than those
                                 // before it
  // Where nothing fits: the job that needs least memory, and how much (of those that are known not
  // to fit without a simulation: at least how much).
  std::optional<training::TrainingJob> smallest;
  Bytes smallest_memory;
  SearchCounts counts;
};

// The best are different layouts: of jobs that differ in recomputation, ZeRO stage and the split of
// layers over chunks alone, the fastest that fits is one of them. Best first by the bounds of
// training::step_bound(): no job is left out that could be among the best, or on the front.
// Throws UsageError where no layout is possible.
TrainingFound search_training(const TrainingSearch& search);

// Every possible job of the space, simulated, in the order of candidates_of().
std::vector<FoundStep> simulate_all(const TrainingSearch& search);

// Whether two jobs are the same layout as search_training() counts them.
bool same_layout(const training::TrainingJob& one, const training::TrainingJob& other);

}  // namespace moesim::study
