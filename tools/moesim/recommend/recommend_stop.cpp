#include "tools/moesim/recommend/recommend_stop.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/text.hpp"
#include "tools/moesim/progress.hpp"
#include "tools/moesim/recommend/recommend_report.hpp"

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

}  // namespace

SearchStop::SearchStop(const CommandLine& line) : start_(Clock::now()) {
  if (line.has("time-limit")) limit_s_ = parse_seconds(line.get("time-limit"));
  begin_one_of(1);
}

bool SearchStop::is_due() const { return is_interrupted() || (end_ && Clock::now() >= *end_); }

void SearchStop::begin_one_of(int left) {
  if (!limit_s_) return;
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double> spent = now - start_;
  const std::chrono::duration<double> share(std::max(*limit_s_ - spent.count(), 0.0) / left);
  end_ = now + std::chrono::duration_cast<Clock::duration>(share);
}

std::string SearchStop::text() const {
  if (is_interrupted()) return "interrupted";
  const std::chrono::duration<double> spent = std::min(Clock::now(), *end_) - start_;
  return fmt::format("stopped after {} (--time-limit)",
                     duration(std::min(spent.count(), *limit_s_)));
}

ExitCode SearchStop::code(bool proven) const {
  if (is_interrupted()) return ExitCode::interrupted;
  return proven ? ExitCode::ok : ExitCode::timeout;
}

std::string stopped_text(const SearchStop& stop, const study::SearchProgress& reached) {
  const std::string where = reached.candidates > 0 ? " at " + search_text(reached) : "";
  return fmt::format("moesim: {}{}: no result is kept", stop.text(), where);
}

}  // namespace moesim::tool
