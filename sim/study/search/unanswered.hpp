#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/study/search/search_candidate.hpp"
#include "sim/study/search/training_search.hpp"

namespace moesim::study {

// Candidates that have a bound but no step, such as one whose gradients are exchanged in a way that
// nobody has measured: a search leaves them out. May be called by several threads.
class Unanswered {
 public:
  // Does the work of a candidate, if it was not left out before. False where it is left out now: an
  // error has why_unanswered(). Throws every other one.
  template <typename Work>
  bool answers(const Candidate& candidate, Work&& work) {
    if (is_there(candidate)) return false;
    try {
      work();
      return true;
    } catch (const Error&) {
      const std::string reason = why_unanswered();
      const std::lock_guard lock(mutex_);
      reasons_.emplace(&candidate, reason);
      return false;
    }
  }

  // Adds them to those that cannot be priced, by one thread. Throws NotMeasured where these, with
  // those that do not fit, are all.
  void add_to(SearchCounts& counts) const {
    if (reasons_.empty()) return;
    counts.unpriced += reasons_.size();
    counts.an_unpriced = reasons_.begin()->second;
    const bool is_all = counts.unpriced + counts.undrawn + counts.too_large == counts.candidates;
    if (is_all) throw NotMeasured(counts.an_unpriced);
  }

 private:
  bool is_there(const Candidate& candidate) {
    const std::lock_guard lock(mutex_);
    return reasons_.contains(&candidate);
  }

  std::mutex mutex_;
  std::map<const Candidate*, std::string> reasons_;  // in the order of a search's candidates
};

}  // namespace moesim::study
