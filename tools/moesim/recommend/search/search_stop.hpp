#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "sim/study/search/training_search.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/interrupt.hpp"

namespace moesim::tool {

// When a search ends before its best are proven: at the first Ctrl-C or SIGTERM, and at the end of
// --time-limit. While it lives, a second signal ends the process at once.
class SearchStop {
 public:
  // The time starts now. Throws UsageError naming the flag.
  explicit SearchStop(const CommandLine& line);

  bool is_due() const;
  // Whether time is over for what the search does behind its stop: a tenth of its time limit, at
  // least half a second, from the first such question, or a signal after a stop by the time limit.
  bool is_over();
  bool is_interrupted() const { return watch_.flag(); }
  // The next one of `left` searches has an equal share of the time that is left.
  void begin_one_of(int left);
  // "interrupted", "stopped after 60 s (--time-limit)". Precondition: is_due().
  std::string text() const;
  // The exit code of a run whose result is `proven` or not; an interrupted one has its own anyway.
  ExitCode code(bool proven) const;

 private:
  using Clock = std::chrono::steady_clock;
  InterruptWatch watch_;
  std::optional<double> limit_s_;
  Clock::time_point start_;
  std::optional<Clock::time_point> end_;   // of the search that runs
  double share_s_ = 0;                     // its time limit; 0: it has none
  std::optional<Clock::time_point> over_;  // as is_over() has it
  bool ends_by_signal_ = false;            // the search that runs
};

// What is said of a search that was stopped before the first step was simulated: where it was.
std::string stopped_text(const SearchStop& stop, study::SearchProgress reached);

}  // namespace moesim::tool
