#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/search/drawn_routings.hpp"
#include "sim/study/search/memory_share.hpp"
#include "sim/study/search/same_layout.hpp"
#include "sim/study/search/search_stopped.hpp"
#include "sim/study/search/training_space.hpp"
#include "sim/training/step/training_step.hpp"
#include "sim/uncertainty/software/step_software.hpp"

namespace moesim::study {

// What a search has done so far.
struct SearchProgress {
  std::size_t candidates = 0;
  std::size_t simulated = 0;             // 0: routings and bounds come first
  double bounded = 0;                    // share of these that is done
  double tokens_per_second_per_gpu = 0;  // of the fastest so far that is acceptable; 0: none yet
  // Not simulated, and may be faster than that by their bounds.
  std::size_t may_be_faster = 0;
  std::size_t found = 0;   // of the best, those that are proven
  bool is_ending = false;  // stopped: it looks for an acceptable step, or draws the best so far
  bool is_of_lossless = false;  // of the search among routers that drop nothing, which comes first
};

// Which training step is fastest among those of a space that fit in memory and lose few tokens.
struct TrainingSearch {
  TrainingSpace space;
  // Whose steps are compared; null: steps as they are predicted.
  std::shared_ptr<const uncertainty::StepSoftware> software;
  std::size_t best = 5;
  double memory_share = usual_memory_share;  // of the GPU's, that a step may take
  double max_loss = 0;                       // counted_loss() that is acceptable
  double min_speed = 0;                      // tokens per second and GPU
  // How much slower than one of the best its twins may be that are counted; 0: none are.
  double twin_margin = 0.01;
  // Keeps what is drawn, for steps that are simulated before or behind the search; null: it is
  // forgotten.
  std::shared_ptr<DrawnRoutings> drawn;
  bool chunks_tell_apart = false;  // layouts that differ in virtual stages are different ones
  int jobs = 1;                    // threads; the result does not depend on them
  // Called now and then, by one thread at a time; may be empty.
  std::function<void(const SearchProgress&)> progress;
  // Asked between two draws or steps, by several threads; true ends the search with the best of
  // those simulated so far, without twins. May be empty.
  std::function<bool()> stop;
  // Asked behind a stop, before each further step that is simulated or bounded to find an
  // acceptable one, by one thread at a time; true ends that too. May be empty.
  std::function<bool()> give_up;
};

struct FoundStep {
  training::TrainingJob job;
  training::TrainingStep step;  // as TrainingSearch::software runs it
  std::size_t routing = 0;      // of TrainingSpace::routings
  double loss = 0;              // counted_loss() of the step's drawn routing
  Twins twins;                  // of one of the best
  // The step without the search's software, where it has one.
  std::optional<training::TrainingStep> predicted;
};

struct SearchCounts {
  std::size_t combinations = 0;  // layouts, possible or not
  std::size_t refused = 0;       // of them, by a rule
  std::size_t candidates = 0;    // possible jobs
  std::size_t too_large = 0;     // of them, known not to fit without a simulation
  std::size_t priced = 0;        // sets of layer prices
  std::size_t simulated = 0;
  std::size_t drawn = 0;       // routings of all layers that steps were simulated with
  std::size_t violations = 0;  // simulated below their bound: the order is then not proven
  // Candidates that the profile, the cluster or the dispatcher cannot price: before a simulation,
  // or of those to simulate.
  std::size_t unpriced = 0;
  std::string an_unpriced;  // why not, of one
  std::size_t undrawn = 0;  // candidates with a training::routing_misfit()
  std::string an_undrawn;   // why not, of one
};

// What a search that was stopped leaves open: the front and twins in any case.
struct Unproven {
  std::size_t proven = 0;  // so many of the best, the first ones, are the fastest of all
  // Neither simulated nor known to be slower than the next of the best, or where all are proven
  // than any; those that lose too much do not count.
  std::size_t may_be_faster = 0;
  // That a step of one of these takes, at least; 0: not known yet, infinite: there are none.
  double least_us = std::numeric_limits<double>::infinity();
};

struct TrainingFound {
  std::vector<FoundStep> best;  // fastest first
  // Steps of which no other is faster and loses less, fastest first: each loses at least 1 % less
  // than those before it. What is not here is slower than one that loses no more, but for that 1 %
  // and for what its own draws differ from DrawnRoutings::loss().
  std::vector<FoundStep> front;
  // Where nothing fits: the job that needs least memory, and how much (of those that are known not
  // to fit without a simulation: at least how much).
  std::optional<training::TrainingJob> smallest;
  Bytes smallest_memory;
  SearchCounts counts;
  std::optional<Unproven> unproven;  // of a search that was stopped; else all is proven
};

// Among equal times the job that loses less comes first, then the one named first in the space. The
// best differ in what same_sizes() compares: of jobs that are the same by it, the fastest that fits
// is one of them, and those that are slower and lose at least 1 % less than each such before; the
// others are its twins. One that differs from one of the best in CUDA graphs alone and takes the
// same time is none of them: Twins::as_fast of that one names it. Best first by the bounds of
// training::step_bound_us(), with a software times its smallest factor on any part: no job is left
// out that could be among the best, or on the front, by DrawnRoutings::loss(). Whether a job loses
// too much is decided by its own draws, where these may. Steps without padded blocks, and with
// intra-GPU rectification, are bounded by what their experts get at least, and simulated with their
// own draws, which layouts with the same groups of experts share. Throws UsageError where no layout
// is possible or can be drawn, NotMeasured where none can be priced, SearchStopped where it is
// stopped before a step was simulated.
TrainingFound search_training(const TrainingSearch& search);

// Fills in what the band of a step and of its ratio to others depends on besides the step: what it
// gains with the host's times, where the search's software prices the host, and the step with the
// exchanges of ZeRO 2 and 3 hidden. search_training() has done that.
void add_for_band(const TrainingSearch& search, FoundStep& found);

// Fills in the step with forced balance beside one with drawn routing, which a search does not
// price: balanced_step_us of the step, and of the predicted one. Others stay as they are. Throws as
// DrawnLoads.
void add_forced_step(const TrainingSearch& search, FoundStep& found);

// Fills in the step of a job, as the search counts it.
void set_step(const TrainingSearch& search, const training::TrainingStep& predicted,
              FoundStep& found);

// Every job of a space.
struct AllSteps {
  std::vector<FoundStep> steps;  // in the order of candidates_of()
  std::size_t left_out = 0;    // jobs that cannot be priced, or have no routing (why_unanswered())
  std::string a_reason;        // why not, of the first of these
  std::size_t unfinished = 0;  // not simulated, where it was stopped
};
// Simulates them, up to a stop. Throws SearchStopped where that is before the first one is done.
AllSteps simulate_all(const TrainingSearch& search);

}  // namespace moesim::study
