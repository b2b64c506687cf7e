#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "sim/routing/routers/router_name.hpp"
#include "sim/study/search/training_search.hpp"

namespace moesim::study {

// Qwen3-30B-A3B on 16 H100: hundreds of jobs, about half of which fit.
inline TrainingSearch search() {
  training::TrainingJob base;
  base.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  base.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  base.model = std::make_shared<const model::Model>(model::Model::load("qwen3-30b-a3b"));
  base.layout.sizes.gpus = 16;
  base.layout.sequence_length = 4096;
  base.layout.global_batch = 64;
  TrainingSearch asked;
  asked.space = usual_training_space(base);
  asked.space.tensor = {1, 2};
  asked.space.virtual_pipeline = {1, 2, 4};
  asked.space.fewer_in_last = {0, 2};
  asked.space.expert_tensor = {1, 2};
  asked.space.micro_batch = {1, 2};
  asked.jobs = 2;
  return asked;
}

// Fewer layers to draw.
inline TrainingSearch search_of_four_layers() {
  TrainingSearch asked = search();
  model::Model small = *asked.space.base.model;
  small.layers = 4;
  asked.space.base.model = std::make_shared<const model::Model>(small);
  return asked;
}

inline training::DrawnRouting of_router(const char* name, const char* capacity_factor = "1") {
  training::DrawnRouting drawn;
  drawn.router = routing::parse_router(name, 8, 8);
  drawn.router.capacity_convention = routing::CapacityConvention::library;
  drawn.router.capacity_factor = Decimal::parse(capacity_factor, "test");
  return drawn;
}

inline bool fits(const FoundStep& step, const TrainingSearch& asked) {
  const Bytes memory = step.job.profile->device().hbm_bytes;
  return static_cast<double>(step.step.peak_memory().count) <=
         asked.memory_share * static_cast<double>(memory.count);
}

// Those that fit, by speed.
inline std::vector<FoundStep> ranked(const TrainingSearch& asked) {
  std::vector<FoundStep> all = simulate_all(asked).steps;
  std::erase_if(all, [&](const FoundStep& step) { return !fits(step, asked); });
  std::stable_sort(all.begin(), all.end(), [](const FoundStep& one, const FoundStep& other) {
    return one.step.step_us < other.step.step_us;
  });
  return all;
}

}  // namespace moesim::study
