#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesim {

// A non-negative decimal exactly as typed: 2.2 is 22/10, never 2.20000000000000018. Capacity
// factors are Decimals, because ceil(CF * S / E) on doubles is off by one slot where CF * S / E is
// whole (S = 3,000, E = 8, CF = 2.2 is 825 slots; doubles give 826).
class Decimal {
 public:
  Decimal() = default;
  explicit Decimal(std::int64_t whole) : digits_(whole) {}
  // "2", "2.20", ".5"; at most 9 decimals and 9 whole digits. Throws UsageError naming `what`.
  static Decimal parse(std::string_view text, const std::string& what);

  // ceil(this * numerator / denominator) in exact integer arithmetic; denominator > 0.
  std::int64_t ceil_of_product(std::int64_t numerator, std::int64_t denominator) const;
  // floor(this * whole), exactly.
  std::int64_t floor_of_product(std::int64_t whole) const;
  double to_double() const;
  // Shortest form that parses back to the same value: "2.2", "1", "0.6667".
  std::string text() const;
  bool is_zero() const { return digits_ == 0; }

  // Value order: 2.20 == 2.2.
  std::strong_ordering operator<=>(const Decimal& other) const;
  bool operator==(const Decimal& other) const { return (*this <=> other) == 0; }
  // Exact; both throw NoAnswer for a result of more digits than a Decimal has.
  friend Decimal operator+(const Decimal& a, const Decimal& b);
  friend Decimal operator*(const Decimal& a, std::int64_t factor);

 private:
  Decimal(std::int64_t digits, int scale);
  std::int64_t digits_ = 0;  // value = digits_ / 10^scale_, no trailing zero decimals
  int scale_ = 0;
};

// "a,b,c" and inclusive ranges "lo:hi:step", mixed freely: "0.5:2:0.5,3" is 0.5 1 1.5 2 3. Exact:
// hi is included whenever a whole number of steps reaches it. Throws UsageError naming `what`.
std::vector<Decimal> parse_decimal_list(std::string_view text, const std::string& what);

}  // namespace moesim
