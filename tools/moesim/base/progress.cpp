#include "tools/moesim/base/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <utility>

#include "tools/moesim/base/interrupt.hpp"
#include "tools/moesim/base/output.hpp"

namespace moesim::tool {

std::string duration(double seconds) {
  const long whole = std::lround(seconds);
  if (whole < 120) return fmt::format("{} s", whole);
  if (whole < 7200) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::string progress_text(const study::SweepProgress& progress, const std::string& unit,
                          double elapsed_s) {
  std::string text = fmt::format("{} of {} {}", progress.done, progress.total, unit);
  if (progress.resumed > 0) text += fmt::format(" ({} resumed)", progress.resumed);
  text += fmt::format(", {} elapsed", duration(elapsed_s));
  if (progress.seconds_left && progress.done < progress.total) {
    text += fmt::format(", about {} left", duration(*progress.seconds_left));
  }
  return text;
}

ProgressLine::ProgressLine(std::string unit)
    : unit_(std::move(unit)),
      terminal_(::isatty(STDERR_FILENO) != 0),
      start_(Clock::now()),
      last_(start_) {}

bool ProgressLine::due() {
  const Clock::time_point now = Clock::now();
  // A log that nobody watches gets a line a minute.
  const auto pause = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(60000);
  const bool first_on_terminal = terminal_ && !drawn_;
  if (!first_on_terminal && now - last_ < pause) return false;
  last_ = now;
  return true;
}

void ProgressLine::draw(const std::string& text) {
  if (!terminal_) {
    note(text);
    return;
  }
  std::fputs(("\r\033[K" + text).c_str(), stderr);
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressLine::show(std::size_t done, std::size_t total) {
  const std::chrono::duration<double> elapsed = Clock::now() - start_;
  study::SweepProgress progress;
  progress.done = done;
  progress.total = total;
  if (done > 0) {
    progress.seconds_left =
        elapsed.count() / static_cast<double>(done) * static_cast<double>(total - done);
  }
  show(progress);
}

void ProgressLine::show(const study::SweepProgress& progress) {
  if (!due()) return;
  const double elapsed = std::chrono::duration<double>(last_ - start_).count();
  const std::string text = progress_text(progress, unit_, elapsed);
  set_reached(text);
  draw(text);
}

void ProgressLine::show(const std::string& text) {
  set_reached(text);
  if (due()) draw(text);
}

void ProgressLine::show(const std::string& text, double share) {
  set_reached(text);
  if (!due()) return;
  constexpr double least_share = 0.02;  // before, the time left is anybody's guess
  const double elapsed = std::chrono::duration<double>(last_ - start_).count();
  const bool known = terminal_ && share >= least_share && share < 1;
  draw(known ? fmt::format("{}, about {} left of it", text, duration(elapsed / share - elapsed))
             : text);
}

void ProgressLine::finish(const std::string& text) {
  set_reached("");
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
  if (!text.empty()) note(text);
}

}  // namespace moesim::tool
