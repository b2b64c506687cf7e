#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/training/job/training_job.hpp"

namespace moesim::study {

// A dispatcher as it was typed and its document; without one: all-to-all.
struct TypedDispatcher {
  std::string typed;
  std::shared_ptr<const profile::Dispatcher> document;
};

// Which training jobs a search looks at: `base` with every combination of these values that
// parallel::layout_fault() and training::option_fault() allow. GPUs, model, sequence length, global
// batch and software are those of `base`, so that all candidates compute the same step.
struct TrainingSpace {
  training::TrainingJob base;
  // Options whose values were asked for, such as "tensor-parallel" and "global-batch": they stay on
  // another number of GPUs, and sizes that are not usual together are looked at.
  std::set<std::string> typed;
  int mtp_depths = 0;  // multi-token prediction, behind the last layer
  std::vector<int> tensor;
  std::vector<int> context;
  std::vector<int> pipeline;
  std::vector<int> virtual_pipeline;
  // Layers that the last chunk has fewer than the others, for the output head: where the rest then
  // divides evenly. 0: divided evenly, or the first chunks have one more.
  std::vector<int> fewer_in_last;
  std::vector<int> expert;
  std::vector<int> expert_tensor;
  std::vector<int> ranks_per_domain;  // TrainingJob::ranks_per_domain
  std::vector<std::int64_t> micro_batch;
  std::vector<bool> expert_overlap;
  std::vector<model::Recompute> recompute;
  std::vector<int> zero;
  std::vector<model::Precision> precision;
  std::vector<TypedDispatcher> dispatchers;
  // Absent: balanced. Experts are placed anew on the ranks of each candidate, by `placement_name`.
  std::vector<std::optional<training::DrawnRouting>> routings;
};

// Nothing, modules that are cheap to compute again, more of them, whole layers.
std::vector<model::Recompute> usual_recompute(const model::Model& model);

// TrainingJob::ranks_per_domain of placements that people use: 0, the default; where GPUs span
// several domains of more than one node also full domains, and equal shares on no more domains than
// the default takes (144 GPUs on racks of 72: 0, 72, 48).
std::vector<int> usual_placements(const training::TrainingJob& base);

// Powers of two and divisors as people use them: up to 8 tensor and expert-tensor ranks, inside an
// NVLink domain; pieces of a sequence of at least 4,096 tokens for context ranks; up to 32 pipeline
// ranks and 16 chunks of each; up to 8 sequences per micro-batch. Recomputation: nothing, cheap
// modules, whole layers. ZeRO 1 and 2. Dispatcher, precision, routing and overlap of experts as in
// `base`, and the placement if that says one: else usual_placements().
TrainingSpace usual_training_space(const training::TrainingJob& base);

// A space on another number of GPUs, as if it had been asked for there: usual lists that nobody
// typed become those of these GPUs, and the global batch grows with them unless it was typed.
TrainingSpace on_gpus(const TrainingSpace& space, int gpus);

// Jobs with the same prices of layers: they differ in the pipeline's chunks, and in ZeRO below 3.
struct TrainingFamily {
  std::size_t routing = 0;  // of TrainingSpace::routings
  std::vector<training::TrainingJob> jobs;
};

struct TrainingCandidates {
  std::vector<TrainingFamily> families;
  std::size_t count = 0;
  std::size_t combinations = 0;  // layouts asked for, possible or not
  std::size_t refused = 0;       // of them: they break a rule of layouts
  std::string a_refusal;         // one of the rules, or of training::option_fault()
};
TrainingCandidates candidates_of(const TrainingSpace& space);

// Of a space without candidates: "--global-batch 4032", "--gpus 512", the nearest batches below and
// above that as many replicas as there can be divide, and the nearest number of whole nodes (within
// a quarter) with which there are some.
std::vector<std::string> nearest_possible(const TrainingSpace& space);

}  // namespace moesim::study
