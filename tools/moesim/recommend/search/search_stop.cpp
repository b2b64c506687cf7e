#include "tools/moesim/recommend/search/search_stop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/text.hpp"
#include "tools/moesim/base/progress.hpp"
#include "tools/moesim/recommend/search/search_progress.hpp"

namespace moesim::tool {
namespace {

// "90", "90s", "5min", "2h".
double parse_seconds(const std::string& text) {
  const std::size_t digits = text.find_first_not_of("0123456789.");
  const std::string unit = digits == std::string::npos ? "s" : text.substr(digits);
  const auto value = parse_number<double>(text.substr(0, digits));
  const double seconds = unit == "s" ? 1 : unit == "min" ? 60 : unit == "h" ? 3600 : 0;
  constexpr double most_s = 7 * 24 * 3600;
  if (value && *value > 0 && seconds * *value > 0 && seconds * *value <= most_s) {
    return seconds * *value;
  }
  throw UsageError(fmt::format(
      "--time-limit: '{}' is no time up to a week, such as 90s, 5min or 2h (90 is in seconds)",
      text));
}

// "0.5 s", "90 s", "13 min 47 s".
std::string spent_text(double seconds) {
  constexpr double short_s = 9.95;
  if (seconds >= short_s) return duration(seconds);
  if (seconds < 0.05) return "less than 0.1 s";
  return fmt::format("{:g} s", std::round(10 * seconds) / 10);
}

}  // namespace

SearchStop::SearchStop(const CommandLine& line) : start_(Clock::now()) {
  if (line.has("time-limit")) limit_s_ = parse_seconds(line.get("time-limit"));
  begin_one_of(1);
}

bool SearchStop::is_due() const { return is_interrupted() || (end_ && Clock::now() >= *end_); }

bool SearchStop::is_over() {
  constexpr double least_s = 0.5;
  const Clock::time_point now = Clock::now();
  if (!over_) {
    const std::chrono::duration<double> more(std::max(least_s, 0.1 * share_s_));
    over_ = now + std::chrono::duration_cast<Clock::duration>(more);
    ends_by_signal_ = is_interrupted();
  }
  return now >= *over_ || (is_interrupted() && !ends_by_signal_);
}

void SearchStop::begin_one_of(int left) {
  over_.reset();
  if (!limit_s_) return;
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double> spent = now - start_;
  const std::chrono::duration<double> share(std::max(*limit_s_ - spent.count(), 0.0) / left);
  share_s_ = share.count();
  end_ = now + std::chrono::duration_cast<Clock::duration>(share);
}

std::string SearchStop::text() const {
  if (is_interrupted()) return "interrupted";
  const std::chrono::duration<double> spent = std::min(Clock::now(), *end_) - start_;
  return fmt::format("stopped after {} (--time-limit)",
                     spent_text(std::min(spent.count(), *limit_s_)));
}

ExitCode SearchStop::code(bool proven) const {
  if (is_interrupted()) return ExitCode::interrupted;
  return proven ? ExitCode::ok : ExitCode::timeout;
}

std::string stopped_text(const SearchStop& stop, study::SearchProgress reached) {
  reached.is_ending = false;
  const std::string where = reached.candidates > 0 ? " at " + search_text(reached) : "";
  return fmt::format("moesim: {}{}: no result is kept", stop.text(), where);
}

}  // namespace moesim::tool
