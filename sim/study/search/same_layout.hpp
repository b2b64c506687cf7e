#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/training/job/training_job.hpp"

namespace moesim::study {

// What tells layouts apart as search_training() counts them: the values of searched_choices() that
// do so. Jobs that differ in the split of layers over chunks, placement, recomputation, ZeRO stage
// or routing alone have the same key, as have those that differ in virtual stages, unless
// `chunks_tell_apart`.
struct LayoutKey {
  const parallel::LayoutRequest* layout;
  const training::TrainingJob* rest;  // a job with this layout, or with another
  bool chunks_tell_apart;
  friend bool operator==(const LayoutKey& one, const LayoutKey& other);
};

// Of the layout of a job. Both have to live on.
LayoutKey layout_key(const parallel::LayoutRequest& layout, const training::TrainingJob& rest,
                     bool chunks_tell_apart);

// The router and its capacity factor; "" without routing.
std::string router_text(const training::TrainingJob& job);

// Whether two jobs are the same layout, but for their routing.
bool same_sizes(const training::TrainingJob& one, const training::TrainingJob& other,
                bool chunks_tell_apart = false);

// And have the same router and capacity factor.
bool same_layout(const training::TrainingJob& one, const training::TrainingJob& other,
                 bool chunks_tell_apart = false);

// Whether they are so but for their CUDA graphs.
bool differ_in_graphs(const LayoutKey& one, const LayoutKey& other);

// The step times of two jobs that are the same but for rounding, relative.
inline constexpr double same_time = 1e-9;

// The layouts that a search has chosen, fastest first.
class ChosenLayouts {
 public:
  // Whether one of them, or one that is as fast with other CUDA graphs, has this key and loses
  // as little: it is no slower than what comes behind it.
  bool outdo(const LayoutKey& key, double loss) const;
  // Takes the next one; no place where it is one of them. Otherwise it takes the same time as the
  // one in this place, loses no less, and differs from it in CUDA graphs alone.
  std::optional<std::size_t> add(const LayoutKey& key, double loss, double step_us);

 private:
  struct Chosen {
    LayoutKey key;
    double loss = 0;
    double step_us = 0;
  };
  std::vector<Chosen> chosen_;
  std::vector<Chosen> as_fast_;
};

// Candidates of the same key as one of the best of a search that are nearly as fast, and lose no
// more than may be.
struct Twins {
  std::size_t count = 0;
  double slowest = 0;  // its step over that of the best, less 1
  // What they differ in from the best: those of searched_choices(), in their order, as far as they
  // do not tell layouts apart; empty: in none of them.
  std::vector<bool> choices;
  bool split = false;    // of the layers over chunks, with as many of these
  bool routing = false;  // the router, or its capacity factor
  // Other CUDA graphs with which the step takes the same time: where it does not wait for the host.
  // In order; not in the count.
  std::vector<training::Graphs> as_fast;
  void add_as_fast(training::Graphs graphs);

  // `slower`: the step of `twin` over that of `best`, less 1.
  void add(const training::TrainingJob& twin, const training::TrainingJob& best, double slower);
};

}  // namespace moesim::study
