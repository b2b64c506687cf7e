#include "sim/base/decimal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cctype>
#include <optional>
#include <string>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/text.hpp"

namespace moesim {
namespace {

__extension__ using Wide = __int128;

constexpr int max_digits = 9;
constexpr std::size_t max_list = 100'000;

std::int64_t power_of_ten(int exponent) {
  std::int64_t result = 1;
  for (int step = 0; step < exponent; ++step) result *= 10;
  return result;
}

// ": 10% is 0.1"
std::string share_hint(std::string_view text) {
  if (!text.ends_with('%')) return "";
  const auto percent = parse_number<double>(text.substr(0, text.size() - 1));
  return percent && *percent >= 0 ? fmt::format(": {} is {:g}", text, *percent / 100) : "";
}

}  // namespace

Decimal::Decimal(std::int64_t digits, int scale) : digits_(digits), scale_(scale) {
  while (scale_ > 0 && digits_ % 10 == 0) {
    digits_ /= 10;
    --scale_;
  }
}

namespace {

// A number with an exponent, as programs print small ones, without it: "1e-05" is "0.00001".
// Nothing for any other text.
std::optional<std::string> with_digits_alone(std::string_view text) {
  const std::size_t at = text.find_first_of("eE");
  if (at == std::string_view::npos || at == 0) return std::nullopt;
  std::string_view power = text.substr(at + 1);
  if (power.starts_with('+')) {
    power.remove_prefix(1);
    if (power.starts_with('-')) return std::nullopt;
  }
  const std::optional<int> exponent = parse_number<int>(power);
  constexpr int most = 20;
  if (!exponent || *exponent < -most || *exponent > most) return std::nullopt;
  std::string digits(text.substr(0, at));
  if (digits.find_first_not_of("0123456789.") != std::string::npos ||
      std::count(digits.begin(), digits.end(), '.') > 1 || digits == ".") {
    return std::nullopt;
  }
  const std::size_t point = std::min(digits.find('.'), digits.size());
  std::erase(digits, '.');
  const int place = static_cast<int>(point) + *exponent;  // of the point among the digits
  if (place <= 0) return "0." + std::string(static_cast<std::size_t>(-place), '0') + digits;
  if (place >= static_cast<int>(digits.size())) {
    return digits + std::string(static_cast<std::size_t>(place) - digits.size(), '0');
  }
  return digits.insert(static_cast<std::size_t>(place), ".");
}

}  // namespace

Decimal Decimal::parse(std::string_view text, const std::string& what) {
  const std::optional<std::string> expanded = with_digits_alone(text);
  std::int64_t digits = 0;
  int whole = 0;
  int scale = 0;
  bool point = false;
  bool valid = !text.empty();
  for (const char character : expanded ? std::string_view(*expanded) : text) {
    if (character == '.' && !point) {
      point = true;
    } else if (std::isdigit(static_cast<unsigned char>(character)) != 0) {
      (point ? scale : whole) += 1;
      if (whole > max_digits || scale > max_digits) {
        throw UsageError(fmt::format("{}: '{}' has more than {} digits before or after the point",
                                     what, text, max_digits));
      }
      digits = digits * 10 + (character - '0');
    } else {
      valid = false;
    }
  }
  if (!valid || whole + scale == 0) {
    throw UsageError(
        fmt::format("{}: '{}' is not a non-negative decimal number such as 1.25, below "
                    "1000000000{}",
                    what, text, share_hint(text)));
  }
  return Decimal(digits, scale);
}

std::int64_t Decimal::ceil_of_product(std::int64_t numerator, std::int64_t denominator) const {
  assert(numerator >= 0 && denominator > 0);
  const Wide over = static_cast<Wide>(denominator) * power_of_ten(scale_);
  const Wide product = static_cast<Wide>(digits_) * numerator;
  return static_cast<std::int64_t>((product + over - 1) / over);
}

std::int64_t Decimal::floor_of_product(std::int64_t whole) const {
  assert(whole >= 0);
  return static_cast<std::int64_t>(static_cast<Wide>(digits_) * whole / power_of_ten(scale_));
}

double Decimal::to_double() const {
  return static_cast<double>(digits_) / static_cast<double>(power_of_ten(scale_));
}

std::string Decimal::text() const {
  if (scale_ == 0) return fmt::format("{}", digits_);
  const std::int64_t unit = power_of_ten(scale_);
  return fmt::format("{}.{:0{}}", digits_ / unit, digits_ % unit, scale_);
}

std::strong_ordering Decimal::operator<=>(const Decimal& other) const {
  const Wide mine = static_cast<Wide>(digits_) * power_of_ten(other.scale_);
  const Wide theirs = static_cast<Wide>(other.digits_) * power_of_ten(scale_);
  return mine < theirs   ? std::strong_ordering::less
         : mine > theirs ? std::strong_ordering::greater
                         : std::strong_ordering::equal;
}

namespace {

std::int64_t narrow(Wide digits) {
  const auto narrowed = static_cast<std::int64_t>(digits);
  if (narrowed != digits) throw NoAnswer("a sum or product of numbers has more than 18 digits");
  return narrowed;
}

}  // namespace

Decimal operator+(const Decimal& a, const Decimal& b) {
  const int scale = a.scale_ > b.scale_ ? a.scale_ : b.scale_;
  const Wide sum = static_cast<Wide>(a.digits_) * power_of_ten(scale - a.scale_) +
                   static_cast<Wide>(b.digits_) * power_of_ten(scale - b.scale_);
  return Decimal(narrow(sum), scale);
}

Decimal operator*(const Decimal& a, std::int64_t factor) {
  return Decimal(narrow(static_cast<Wide>(a.digits_) * factor), a.scale_);
}

std::vector<Decimal> parse_decimal_list(std::string_view text, const std::string& what) {
  std::vector<Decimal> values;
  for (const std::string_view item : split(text, ',')) {
    const std::vector<std::string_view> parts = split(item, ':');
    if (parts.size() == 1) {
      values.push_back(Decimal::parse(item, what));
      continue;
    }
    if (parts.size() != 3) {
      throw UsageError(fmt::format("{}: '{}' is not a range: write lo:hi:step", what, item));
    }
    const Decimal low = Decimal::parse(parts[0], what);
    const Decimal high = Decimal::parse(parts[1], what);
    const Decimal step = Decimal::parse(parts[2], what);
    if (step.is_zero()) throw UsageError(fmt::format("{}: '{}' has a step of 0", what, item));
    if (high < low) {
      throw UsageError(fmt::format("{}: '{}' ends below its start", what, item));
    }
    for (Decimal value = low; value <= high; value = value + step) {
      if (values.size() == max_list) {
        throw UsageError(fmt::format("{}: '{}' has more than {} values", what, item, max_list));
      }
      values.push_back(value);
    }
  }
  return values;
}

}  // namespace moesim
