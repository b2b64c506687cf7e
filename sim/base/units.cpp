#include "sim/base/units.hpp"

#include <fmt/format.h>

#include <array>
#include <cassert>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"

namespace moesim {

Picoseconds Picoseconds::from_us(double microseconds) {
  assert(std::isfinite(microseconds) && microseconds >= 0);
  constexpr double most_us = 9.2e12;  // 63 bits of picoseconds
  if (microseconds > most_us) {
    throw Error(fmt::format(
        "a simulated time of {:.0f} days: simulated time reaches 106 days: is a rate or a size "
        "right?",
        microseconds / 86400e6));
  }
  return Picoseconds(std::llround(microseconds * 1e6));
}

Bytes parse_bytes(std::string_view text, const std::string& what) {
  static constexpr std::array<std::pair<std::string_view, double>, 11> suffixes{{
      {"", 1},
      {"B", 1},
      {"KB", 1e3},
      {"kB", 1e3},
      {"MB", 1e6},
      {"GB", 1e9},
      {"KiB", 1024},
      {"MiB", 1048576},
      {"GiB", 1073741824.0},
      {"TB", 1e12},
      {"TiB", 1099511627776.0},
  }};
  double number = 0;
  const char* const begin = text.data();
  // Not strtod(), which takes another decimal point in other locales.
  const auto [end, error] = std::from_chars(begin, begin + text.size(), number);
  if (error == std::errc::result_out_of_range && text.find("e-") == std::string_view::npos &&
      text.find("E-") == std::string_view::npos) {
    number = HUGE_VAL;
  }
  const std::string_view suffix = text.substr(static_cast<std::size_t>(end - begin));
  // It also takes a minus, "inf" and "nan".
  const bool plain =
      !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) != 0 || text[0] == '.');
  for (const auto& [name, factor] : suffixes) {
    if (!plain || end == begin || suffix != name) continue;
    const double bytes = number * factor;
    if (bytes == 0 || bytes > 9e18) {
      throw NoAnswer(fmt::format("{}: {} is too {}", what, text,
                                 bytes == 0 ? "small: at least 1 byte" : "large: at most 9e18"));
    }
    if (!(bytes >= 1) || bytes != std::floor(bytes)) break;
    return Bytes(static_cast<std::int64_t>(bytes));
  }
  throw UsageError(
      fmt::format("{}: '{}' is not a size: give a whole number of bytes, with a suffix if you like "
                  "(KB, MB, GB are decimal; KiB, MiB, GiB binary), for example 64MiB",
                  what, text));
}

}  // namespace moesim
