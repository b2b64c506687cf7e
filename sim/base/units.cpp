#include "sim/base/units.hpp"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"

namespace moesim {

namespace {

constexpr double most = 9.2e18;  // of 63 bits

constexpr const char* reach = "simulated time reaches 106 days: is a rate or a size right?";

}  // namespace

void throw_time_too_long() {
  throw Error(fmt::format("simulated times that add up to more than 106 days: {}", reach));
}

void throw_too_many_bytes() {
  throw Error("amounts of data that add up to more than 9.2e18 bytes: is a size right?");
}

Picoseconds Picoseconds::from_us(double microseconds) {
  if (!(microseconds >= 0)) {
    throw Error(fmt::format("a simulated time of {:g} us: a duration is 0 or more", microseconds));
  }
  return rounded(microseconds * 1e6);
}

Picoseconds Picoseconds::rounded(double picoseconds) {
  if (std::isnan(picoseconds)) throw Error("a simulated time that is no number");
  if (std::abs(picoseconds) > most) {
    throw Error(fmt::format("a simulated time of {:.0f} days: {}", std::abs(picoseconds) / 86400e12,
                            reach));
  }
  return Picoseconds(std::llround(picoseconds));
}

Bytes Bytes::rounded(double bytes) {
  if (!(bytes >= 0 && bytes <= most)) {
    throw Error(fmt::format("an amount of {:g} bytes: it is 0 to 9.2e18: is a size right?", bytes));
  }
  return Bytes(std::llround(bytes));
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
