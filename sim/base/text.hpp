#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace moesim {

// The parts of `text` between separators: "a,,b" has three, "" has one, which is empty. They point
// into `text`.
std::vector<std::string_view> split(std::string_view text, char separator);

// The parts of `text` between white space, none of them empty.
std::vector<std::string> words_of(std::string_view text);

// The text without white space before and behind it; it points into `text`.
std::string_view trimmed(std::string_view text, std::string_view spaces = " \t\r\n");

// Whether `part` is somewhere in `text`.
inline bool has_part(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The number that is all of `text`: no spaces, no sign '+', nothing behind it. Nothing where the
// text is no number or the number does not fit the type. Decimal, in the C locale.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stopped != end) return std::nullopt;
  return value;
}

// The text for a terminal: control characters other than line feed and tab, which could move its
// cursor or change its title, as "\x1b"; those of Unicode (U+0080 to U+009F) as their bytes.
std::string printable(std::string_view text);

// Whether all of `text` is a whole number in digits, of any size: 2e30 is none, 20 digits are one.
bool is_whole_number(std::string_view text);

// The digits of a whole number with an exponent: "1000000000" of "1e9", "1500" of "1.5e3". Nothing
// for any other text, also where the number is not whole.
std::optional<std::string> without_exponent(std::string_view text);

// To the nearest whole number, digits in groups of three: "13,270". The value is 0 or more.
std::string grouped(double value);

// A whole number from `low` to `high`, in digits or as 1e9. Throws UsageError "WHERE: ..." that
// says whether it is none, too small or too large; `where` is a flag, or a file with line and
// column.
std::int64_t parse_whole(const std::string& where, std::string_view text, std::int64_t low,
                         std::int64_t high);

}  // namespace moesim
