#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/scenario/options.hpp"
#include "sim/study/sweep/result_row.hpp"

namespace moesim::study {

// One scenario of a sweep: complete, or refused with a reason. A scenario whose options make sense
// one by one but not together is kept as far as it could be filled in.
struct SweepPoint {
  scenario::OptionValues values;
  std::optional<scenario::Scenario> scenario;
  std::string refusal;                      // "": none
  std::optional<std::size_t> repeats;       // the earlier point whose row this one's would be
  std::exception_ptr refused_by = nullptr;  // what the refusal is the text of
};

// Fills in every point of a grid. Throws UsageError only for a value that makes no sense by
// itself; a combination that cannot be is a refused point.
std::vector<SweepPoint> plan(const std::vector<scenario::OptionValues>& grid,
                             scenario::DocumentCache& documents);

// Points whose rows have the same options are one scenario: a router without capacity at each
// capacity factor, say. All but the first are marked.
void mark_repeats(std::vector<SweepPoint>& points);

struct SweepProgress {
  std::size_t done = 0;     // rows there are, resumed ones included
  std::size_t resumed = 0;  // of them, taken from the journal or known
  std::size_t total = 0;
  std::optional<double> seconds_left;  // once there is something to go by
};

struct SweepSettings {
  int jobs = 1;
  // Where finished rows are kept until the sweep ends, "" for nowhere; with `resume`, the rows it
  // holds are taken over. `fingerprint` tells whether they are rows of this sweep.
  std::string journal;
  bool resume = false;
  std::string fingerprint;
  // How long the scenarios that share their logits are routed together before the first of them has
  // its row, about; 0: until all are routed, which takes the least time in all.
  double seconds_of_pass = 0;
  // Rows that are known beforehand, by point, and not evaluated.
  std::map<std::size_t, Row> known;
  // [point] the point that its speed is compared with (baselines()); empty: none.
  std::vector<std::optional<std::size_t>> baseline_of;
  // Set from outside: passes of routing end at their next layer, and scenarios that need no more
  // routing are finished.
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const SweepProgress&)> progress;  // called by one thread at a time
  // What gives the figures of a scenario: evaluate(), or what a test puts in its place.
  std::function<Outcome(const scenario::Scenario&, routing::RoutingCache&)> evaluate =
      [](const scenario::Scenario& scenario, routing::RoutingCache& cache) {
        return study::evaluate(scenario, cache);
      };
};

// Threads, of sweeps and searches. Throws UsageError, which names --jobs, outside 1 to 4096.
inline constexpr int most_jobs = 4096;
void check_jobs(int jobs);

struct SweepResult {
  std::vector<std::optional<Row>> rows;  // in grid order; absent for repeats, and after `stop`
  std::size_t total = 0;                 // rows of a whole sweep
  bool complete() const;
};

// The rows of every scenario that repeats none, evaluated on `settings.jobs` threads. They depend
// on the points alone, not on jobs, order or resumption. An Error of one scenario makes its row a
// refused one; anything else ends the sweep. Throws UsageError that names the setting for one
// outside of its range.
SweepResult sweep(const std::vector<SweepPoint>& points, const SweepSettings& settings);

// A text that differs whenever the points, the files behind them, the columns of their rows or the
// `build` of the program do: rows of another build may have other figures.
std::string fingerprint(const std::vector<SweepPoint>& points, const std::string& build);

}  // namespace moesim::study
