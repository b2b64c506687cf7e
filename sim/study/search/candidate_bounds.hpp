#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sim/study/search/drawn_routings.hpp"
#include "sim/study/search/search_stopped.hpp"
#include "sim/study/search/training_space.hpp"
#include "sim/uncertainty/software/step_software.hpp"

namespace moesim::study {

// What a step cannot be below.
struct CandidateBound {
  double step_us = 0;
  Bytes memory;
};

// How tight the bound of a candidate with drawn routing is.
enum class Tightness : std::uint8_t {
  balanced,  // of least_load(), without a draw
  least,     // of DrawnRoutings::least(), not its own
  own,       // of its own loads, or there are no others
};

// The bounds of all jobs of a family. Layers are priced only where one of them may fit.
struct FamilyBounds {
  std::vector<CandidateBound> bounds;  // of each job
  bool fits = false;
  bool priced = false;
  bool is_too_slow = false;  // all of them that fit: losses are not drawn
  bool is_exact = false;     // as BalancedJob has it
  std::string refusal;       // why layers cannot be priced; "": they can
  std::string misfit;        // why the recorded routing does not fit; "": it does
  bool is_known = true;      // false: stopped before its loss was drawn; it has no times
  double loss = 0;           // expected
  double least_loss = 0;     // that the draws of a job may have

  Tightness tightness() const { return is_exact ? Tightness::own : Tightness::balanced; }
};

// Bounds of the candidates of a search from below, by training::step_bound_us() and
// training::memory_bound(), with a software times its smallest factor on any part.
class CandidateBounds {
 public:
  struct Rules {
    double room = 0;                                      // bytes that a step may take
    const uncertainty::StepSoftware* software = nullptr;  // null: steps as they are predicted
    int jobs = 1;                                         // threads
    std::function<bool()> stop = {};                      // TrainingSearch::stop
    // Losses of jobs that take longer are not drawn, where their bounds do not depend on them.
    double limit_us = std::numeric_limits<double>::infinity();
  };
  // Families, routings and software have to live on.
  CandidateBounds(const std::vector<TrainingFamily>& families, DrawnRoutings& drawn, Rules rules)
      : families_(families), drawn_(drawn), rules_(std::move(rules)), tight_(families.size()) {}

  // Without a draw of steps: only their losses are drawn. `progress` hears the share of the work
  // that each call has added, from several threads; may be empty. Stopped while losses are drawn,
  // families whose loss is known have their bounds. Throws SearchStopped where it is stopped
  // before.
  std::vector<FamilyBounds> bound_all(const std::function<void(double share)>& progress) const;

  // Tightens the bound of job `place` of a family by draws that the family shares; what does not
  // fit by them has an infinite one. False: it is as tight as it can be. By several threads, each
  // with a bound of its own.
  bool tighten(std::size_t family, std::size_t place, Tightness& tightness, double& step_us);

 private:
  // The bounds of a family from drawn loads, as tight as they have become.
  struct TightBounds {
    std::mutex mutex;
    Tightness tightness = Tightness::balanced;
    std::vector<double> step_us;
  };

  void add_times(const TrainingFamily& family, const routing::TokenLoss& loss,
                 FamilyBounds& found) const;
  void set_times(const TrainingFamily& family, const training::LayerPrices& prices,
                 const std::vector<training::Passes>& least,
                 std::vector<CandidateBound>& bounds) const;
  void begin_times(const TrainingFamily& family, FamilyBounds& found) const;
  double draw_losses(std::vector<FamilyBounds>& found,
                     const std::function<void(double share)>& progress) const;
  void tighten(const TrainingFamily& family, TightBounds& bounds) const;
  void set_loss(const TrainingFamily& family, FamilyBounds& found) const;
  bool is_stopped() const { return rules_.stop && rules_.stop(); }
  void end_if_stopped() const;
  bool fits(Bytes memory) const { return static_cast<double>(memory.count) <= rules_.room; }

  const std::vector<TrainingFamily>& families_;
  DrawnRoutings& drawn_;
  Rules rules_;
  std::vector<TightBounds> tight_;  // of each family
};

}  // namespace moesim::study
