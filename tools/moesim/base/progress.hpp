#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "sim/study/sweep/sweep.hpp"

namespace moesim::tool {

// "12 of 160 scenarios, 8 s, about 96 s left" on stderr: one line redrawn on a terminal, a plain
// line every few seconds elsewhere.
class ProgressLine {
 public:
  // `unit` is what is counted: "scenarios", "replicas routed".
  explicit ProgressLine(std::string unit);
  void show(const study::SweepProgress& progress);
  // `done` of `total` units, of which each takes as long as those before it on average.
  void show(std::size_t done, std::size_t total);
  // The same of a text of the caller's own.
  void show(const std::string& text);
  // The same where `share` of it is done: on a terminal with the time that the rest takes, if each
  // part takes as long as those before it on average.
  void show(const std::string& text, double share);
  // Ends the redrawn line; a text stays in its place.
  void finish(const std::string& text = "");

 private:
  using Clock = std::chrono::steady_clock;
  bool due();  // whether it is time for another text
  void draw(const std::string& text);
  std::string unit_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

// "95 s", "13 min 47 s", "2 h 5 min".
std::string duration(double seconds);

std::string progress_text(const study::SweepProgress& progress, const std::string& unit,
                          double elapsed_s);

}  // namespace moesim::tool
