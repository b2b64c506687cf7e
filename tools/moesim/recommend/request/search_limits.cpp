#include "tools/moesim/recommend/request/search_limits.hpp"

#include <fmt/format.h>

#include "sim/base/text.hpp"
#include "sim/study/search/search_limits.hpp"

namespace moesim::tool {
namespace {

// `example`: of the shares that people give, in per cent.
double share_of(const CommandLine& line, const char* flag, double fallback, double least,
                double example) {
  if (!line.has(flag)) return fallback;
  std::string text = line.get(flag);
  const bool percent = !text.empty() && text.back() == '%';
  if (percent) text.pop_back();
  const auto value = parse_number<double>(text);
  const double share = value.value_or(-1) / (percent ? 100 : 1);
  if (share >= least && share <= 1) return share;
  throw UsageError(fmt::format("--{}: '{}' is no share from {:g} to 1, such as {:g}% or {:g}", flag,
                               line.get(flag), least, example, example / 100));
}

// A share without "%" of a tenth or more is rarely meant: 0.5 is often typed for half a per cent.
void check_max_loss(const CommandLine& line) {
  constexpr double least_doubtful = 0.1;
  const std::string text = line.get("max-loss", "0");
  const auto share = parse_number<double>(text);
  if (!share || *share < least_doubtful || *share > 1) return;
  throw UsageError(fmt::format("--max-loss {}: per cent, or a share of 1? Give {:g}% or {:g}%",
                               text, *share, 100 * *share));
}

}  // namespace

SearchLimits requested_limits(const CommandLine& line) {
  SearchLimits limits;
  if (line.has("best")) {
    limits.best =
        static_cast<std::size_t>(parse_whole("--best", line.get("best"), 1, study::most_best));
  }
  check_max_loss(line);
  limits.max_loss = share_of(line, "max-loss", 0, 0, 0.5);
  limits.memory_share =
      share_of(line, "memory-share", limits.memory_share, study::least_memory_share, 90);
  if (line.has("min-speed")) {
    limits.min_speed = static_cast<double>(
        parse_whole("--min-speed", line.get("min-speed"), 0, study::most_min_speed));
  }
  return limits;
}

}  // namespace moesim::tool
