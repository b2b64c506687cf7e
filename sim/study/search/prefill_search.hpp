#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/scenario/options.hpp"
#include "sim/study/search/memory_share.hpp"
#include "sim/study/sweep/result_row.hpp"
#include "sim/study/sweep/sweep.hpp"

namespace moesim::study {

// Which forward pass (--mode prefill) is fastest. All scenarios are simulated.
struct PrefillSearch {
  std::vector<scenario::OptionValues> scenarios;  // with all that is not default
  std::size_t best = 5;
  double memory_share = usual_memory_share;  // of the GPU's, that a pass may take
  double max_loss = 0;                       // counted_loss() that is acceptable
  double min_speed = 0;                      // tokens per second and GPU
  int jobs = 1;                              // threads; the result does not depend on them
  // Asked now and then, by another thread; true ends the search with the scenarios that are
  // simulated. May be empty.
  std::function<bool()> stop;
  std::function<void(const SweepProgress&)> progress;                     // as SweepSettings has it
  decltype(SweepSettings::evaluate) evaluate = SweepSettings().evaluate;  // as it has it
};

struct FoundPass {
  scenario::OptionValues options;
  Row row;                   // of result_columns(), beside the fastest of the best as its baseline
  double loss = 0;           // counted_loss()
  std::size_t scenario = 0;  // its place in PrefillSearch::scenarios
  // Later scenarios that have the same figures, all of them.
  std::vector<scenario::OptionValues> equals;

  double figure(const std::string& column) const;
  std::string text(const std::string& column) const;
};

struct PrefillFound {
  // By tokens per second, fastest first; of those that are equal in every figure the first alone.
  std::vector<FoundPass> best;
  std::vector<FoundPass> front;  // fastest first; each loses 1 % and 0.01 points less
  std::size_t simulated = 0;
  std::size_t refused = 0;  // that cannot be, or that nothing measured answers: why_unanswered()
  std::string a_refusal;
  // Neither, each once that repeats no other, as the search was stopped: one of them may be
  // faster.
  std::size_t unfinished = 0;
  std::size_t too_large = 0;
  double least_gib = 0;  // of those that are too large
};

// Throws UsageError for a value that makes no sense by itself, Error where every scenario is
// refused, SearchStopped where it is stopped before the first one is simulated; an error of one
// scenario that is no answer to it (why_unanswered()) as it is.
PrefillFound search_prefill(const PrefillSearch& search);

}  // namespace moesim::study
