#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "sim/training/job/training_job.hpp"

namespace moesim::study {

// What tells layouts apart as search_training() counts them. Jobs that differ in the split of
// layers over chunks, placement, recomputation, ZeRO stage or routing alone have the same sizes, as
// have those that differ in virtual stages, unless `chunks_tell_apart`.
struct LayoutSizes {
  int tensor = 0, context = 0, pipeline = 0;
  int virtual_pipeline = 0;  // 0: does not count
  int expert = 0, expert_tensor = 0;
  std::int64_t micro_batch = 0;
  bool expert_overlap = false;
  model::Precision precision{};
  training::Graphs graphs{};
  std::string_view dispatcher;  // of the job, which has to live on
  friend bool operator==(const LayoutSizes&, const LayoutSizes&) = default;
};

// `rest`: a job with this layout, or with another.
LayoutSizes layout_sizes(const parallel::LayoutRequest& layout, const training::TrainingJob& rest,
                         bool chunks_tell_apart);

// The router and its capacity factor; "" without routing.
std::string router_text(const training::TrainingJob& job);

// Whether two jobs are the same layout, but for their routing.
bool same_sizes(const training::TrainingJob& one, const training::TrainingJob& other,
                bool chunks_tell_apart = false);

// And have the same router and capacity factor.
bool same_layout(const training::TrainingJob& one, const training::TrainingJob& other,
                 bool chunks_tell_apart = false);

// Candidates of the same sizes as one of the best of a search that are nearly as fast, and lose no
// more than may be.
struct Twins {
  std::size_t count = 0;
  double slowest = 0;  // its step over that of the best, less 1
  // What they differ in from the best.
  bool virtual_stages = false;
  bool split = false;  // of the layers over chunks, with as many of these
  bool recompute = false;
  bool placement = false;  // ranks per domain
  bool zero = false;
  bool routing = false;  // the router, or its capacity factor

  // `slower`: the step of `twin` over that of `best`, less 1.
  void add(const training::TrainingJob& twin, const training::TrainingJob& best, double slower);
};

}  // namespace moesim::study
