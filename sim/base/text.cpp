#include "sim/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"

namespace moesim {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::vector<std::string> words_of(std::string_view text) {
  constexpr std::string_view spaces = " \t\n\v\f\r";
  std::vector<std::string> words;
  for (std::size_t at = text.find_first_not_of(spaces); at != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(spaces, at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = text.find_first_not_of(spaces, end);
  }
  return words;
}

std::string_view trimmed(std::string_view text, std::string_view spaces) {
  const std::size_t first = text.find_first_not_of(spaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(spaces) + 1 - first);
}

std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto next = static_cast<unsigned char>(at + 1 < text.size() ? text[at + 1] : 0);
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {
      shown += fmt::format("\\x{:02x}\\x{:02x}", byte, next);
      ++at;
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += text[at];
    }
  }
  return shown;
}

std::string grouped(double value) {
  const std::string digits = fmt::format("{:.0f}", value);
  std::string text;
  for (std::size_t at = 0; at < digits.size(); ++at) {
    if (at > 0 && (digits.size() - at) % 3 == 0) text += ',';
    text += digits[at];
  }
  return text;
}

bool is_whole_number(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char sign) { return sign >= '0' && sign <= '9'; });
}

std::optional<std::string> without_exponent(std::string_view text) {
  const std::size_t mark = text.find_first_of("eE");
  if (mark == std::string_view::npos) return std::nullopt;
  std::string_view power = text.substr(mark + 1);
  if (power.starts_with('+')) power.remove_prefix(1);
  constexpr std::size_t most = 99;
  const std::optional<std::size_t> exponent = parse_number<std::size_t>(power);
  if (!exponent || *exponent > most) return std::nullopt;
  const std::string_view mantissa = text.substr(0, mark);
  const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
  const std::string_view whole = mantissa.substr(0, point);
  const std::string_view decimals =
      point < mantissa.size() ? mantissa.substr(point + 1) : std::string_view();
  if (!is_whole_number(whole) || (point < mantissa.size() && !is_whole_number(decimals)) ||
      decimals.size() > *exponent || decimals.starts_with('-')) {
    return std::nullopt;
  }
  return fmt::format("{}{}{}", whole, decimals, std::string(*exponent - decimals.size(), '0'));
}

// What to give instead of a number such as "32k": a sequence of 32k has 32768 tokens, a batch of
// 16M has 16000000.
std::optional<std::string> written_out(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const char letter = text.back();
  const bool thousand = letter == 'k' || letter == 'K';
  const auto number = parse_number<std::int64_t>(text.substr(0, text.size() - 1));
  if (!number || *number < 1 || *number > 1 << 20 || (!thousand && letter != 'M')) {
    return std::nullopt;
  }
  const std::int64_t binary = thousand ? 1024 : 1024 * 1024;
  const std::int64_t decimal = thousand ? 1000 : 1000 * 1000;
  return fmt::format("write it out, {} or {}", *number * binary, *number * decimal);
}

std::int64_t parse_whole(const std::string& where, std::string_view text, std::int64_t low,
                         std::int64_t high) {
  if (const std::optional<std::string> digits = without_exponent(text)) {
    return parse_whole(where, *digits, low, high);
  }
  if (!is_whole_number(text)) {
    throw UsageError(
        fmt::format("{}: '{}' is not a whole number: {}", where, text,
                    written_out(text).value_or(fmt::format("give one from {} to {}", low, high))));
  }
  const std::optional<std::int64_t> value = parse_number<std::int64_t>(text);
  const bool too_small = value ? *value < low : text.front() == '-';
  if (too_small) {
    throw NoAnswer(fmt::format("{}: {} is too small: at least {}", where, text, low));
  }
  if (!value || *value > high) {
    throw NoAnswer(fmt::format("{}: {} is too large: at most {}", where, text, high));
  }
  return *value;
}

}  // namespace moesim
