#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace moesim::study {

// The candidates of a search in the order of their value, smallest first, where a value is dear and
// bounds from below are known: a candidate is valued only while no other can be smaller.
struct BestFirst {
  std::vector<double> bounds;  // of each candidate
  int jobs = 1;                // threads; neither the result nor what is valued depends on them

  // A tighter bound of a candidate than those told before; nothing: there is none, so that it is
  // valued. For bounds that take time themselves. Called by several threads; may be empty.
  std::function<std::optional<double>(std::size_t candidate)> tighter;
  // The value of a candidate; nothing: it is out of the question. Called by several threads.
  std::function<std::optional<double>(std::size_t candidate)> value;
  // Takes the next candidate in order; false ends the search. Equal values come by index.
  std::function<bool(std::size_t candidate, double value)> accept;
  // Told how many were valued so far, after each batch; may be empty.
  std::function<void(std::size_t valued)> progress;

  // Asked before each candidate, by several threads; true ends the proof: accept() is given the
  // values that there are, in order, whatever the bounds of the others. May be empty.
  std::function<bool()> stop;
  // Whether a value takes little time. Of such candidates those with the least bounds are valued
  // behind a stop too, `most_quick` of them. May be empty: none.
  std::function<bool(std::size_t candidate)> is_quick;
  static constexpr std::size_t most_quick = 32;
  // Asked before each of them, by several threads; true: no more are valued. May be empty.
  std::function<bool()> give_up;
};

struct BestFirstCounts {
  std::size_t valued = 0;
  std::size_t violations = 0;  // values below their bounds: the order is then not proven
  bool stopped = false;        // candidates were accepted that may not be next in the order
};

BestFirstCounts run_best_first(const BestFirst& search);

}  // namespace moesim::study
