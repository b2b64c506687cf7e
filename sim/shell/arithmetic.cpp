#include "sim/shell/arithmetic.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <limits>
#include <string_view>

#include "sim/base/text.hpp"
#include "sim/shell/text.hpp"

namespace moesim::shell {
namespace {

using Number = std::optional<std::int64_t>;

Number power(std::int64_t base, std::int64_t exponent) {
  constexpr std::int64_t most = 62;
  if (exponent < 0 || exponent > most) return std::nullopt;
  std::int64_t result = 1;
  for (std::int64_t step = 0; step < exponent; ++step) {
    if (__builtin_mul_overflow(result, base, &result)) return std::nullopt;
  }
  return result;
}

// Products and sums; nothing where the result is no number of 64 bits.
Number computed(std::string_view by, std::int64_t one, std::int64_t other) {
  std::int64_t result = 0;
  if (by == "+" && !__builtin_add_overflow(one, other, &result)) return result;
  if (by == "-" && !__builtin_sub_overflow(one, other, &result)) return result;
  if (by == "*" && !__builtin_mul_overflow(one, other, &result)) return result;
  if (by == "**") return power(one, other);
  if (by == "/" || by == "%") {
    const bool too_large = other == -1 && one == std::numeric_limits<std::int64_t>::min();
    if (other == 0 || too_large) return std::nullopt;
    return by == "/" ? one / other : one % other;
  }
  return std::nullopt;
}

// The value of those and of comparisons, which are 1 or 0.
Number applied(std::string_view by, std::int64_t one, std::int64_t other) {
  if (by == "==") return one == other;
  if (by == "!=") return one != other;
  if (by == "<") return one < other;
  if (by == ">") return one > other;
  if (by == "<=") return one <= other;
  if (by == ">=") return one >= other;
  if (by == "&&") return one != 0 && other != 0;
  if (by == "||") return one != 0 || other != 0;
  return computed(by, one, other);
}

struct Operator {
  std::string_view sign;
  int rank;  // the larger binds
};
// Longer signs first.
constexpr std::array<Operator, 14> operators = {{{"**", 7},
                                                 {"==", 3},
                                                 {"!=", 3},
                                                 {"<=", 4},
                                                 {">=", 4},
                                                 {"&&", 2},
                                                 {"||", 1},
                                                 {"<", 4},
                                                 {">", 4},
                                                 {"*", 6},
                                                 {"/", 6},
                                                 {"%", 6},
                                                 {"+", 5},
                                                 {"-", 5}}};

class Arithmetic {
 public:
  Arithmetic(const std::string& text, const Lookup& lookup) : text_(text), lookup_(lookup) {}

  Number value() {
    const Number all = choice();
    skip();
    return at_ == text_.size() ? all : std::nullopt;
  }

 private:
  void skip() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }

  // Whether it is the next sign, which is then behind.
  bool takes(char sign) {
    skip();
    if (at_ == text_.size() || text_[at_] != sign) return false;
    ++at_;
    return true;
  }

  Number choice() {
    const Deeper deeper(depth_);
    if (depth_ > deepest) return std::nullopt;
    const Number condition = chain(1);
    if (!condition || !takes('?')) return condition;
    const Number one = choice();
    if (!one || !takes(':')) return std::nullopt;
    const Number other = choice();
    return *condition != 0 ? one : other;
  }

  // Operands and the operators between them that bind at least as `least`.
  Number chain(int least) {
    const Deeper deeper(depth_);
    if (depth_ > deepest) return std::nullopt;
    Number value = operand();
    while (value) {
      const Operator* by = next_operator();
      if (by == nullptr || by->rank < least) return value;
      at_ += by->sign.size();
      // "**" is read from the right.
      const Number other = chain(by->sign == "**" ? by->rank : by->rank + 1);
      if (!other) return std::nullopt;
      value = applied(by->sign, *value, *other);
    }
    return value;
  }

  const Operator* next_operator() {
    skip();
    for (const Operator& each : operators) {
      if (text_.compare(at_, each.sign.size(), each.sign) == 0) return &each;
    }
    return nullptr;
  }

  Number operand() {
    const Deeper deeper(depth_);
    if (depth_ > deepest) return std::nullopt;
    skip();
    const char first = at_ < text_.size() ? text_[at_] : '\0';
    const char second = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (first == '(') {
      ++at_;
      const Number inner = choice();
      return takes(')') ? inner : std::nullopt;
    }
    if ((first == '-' || first == '+' || first == '!') && second != first) {
      ++at_;
      const Number value = operand();
      if (!value) return std::nullopt;
      if (first == '!') return *value == 0;
      return first == '-' ? applied("-", 0, *value) : value;
    }
    return number_or_variable();
  }

  Number number_or_variable() {
    std::string word;
    while (at_ < text_.size() && is_name(text_[at_])) word += text_[at_++];
    // A shell takes 64 as it is and looks up no variable; "010" is octal.
    const bool is_number = !word.empty() && word.front() >= '0' && word.front() <= '9';
    const std::optional<std::string> known = is_number ? std::optional(word) : lookup_(word);
    if (word.empty() || !known || (is_number && word.size() > 1 && word.front() == '0')) {
      return std::nullopt;
    }
    const Number number = parse_number<std::int64_t>(*known);
    return number && *number < (std::int64_t{1} << 31) ? number : std::nullopt;
  }

  static constexpr int deepest = 200;
  // One for as long as it is there.
  class Deeper {
   public:
    explicit Deeper(int& depth) : depth_(depth) { ++depth_; }
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;  // it would count twice
    Deeper& operator=(const Deeper&) = delete;

   private:
    int& depth_;
  };

  const std::string& text_;
  const Lookup& lookup_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

constexpr std::string_view spaces = " \t\n";  // of a shell: a carriage return is none

}  // namespace

std::optional<std::int64_t> arithmetic_of(const std::string& text, const Lookup& lookup) {
  return Arithmetic(text, lookup).value();
}

std::optional<Change> change_in(const std::string& text) {
  const std::string all(trimmed(text, spaces));
  std::size_t begin = 0;
  for (const char* step : {"++", "--"}) {
    if (all.rfind(step, 0) == 0) begin = 2;
  }
  std::size_t at = begin;
  while (at < all.size() && is_name(all[at])) ++at;
  const std::string name = all.substr(begin, at - begin);
  const std::string rest(trimmed(std::string_view(all).substr(at), spaces));
  if (name.empty() || (name.front() >= '0' && name.front() <= '9')) return std::nullopt;
  const std::string step = begin > 0 ? all.substr(0, begin) : rest;
  if ((begin > 0 && rest.empty()) || rest == "++" || rest == "--") {
    return Change{name, name + " " + step[0] + " 1"};
  }
  const auto equals = rest.find('=');
  if (begin > 0 || equals == std::string::npos || rest.compare(equals, 2, "==") == 0) {
    return std::nullopt;
  }
  const std::string by = rest.substr(0, equals);
  const std::string value = rest.substr(equals + 1);
  if (by.empty()) return Change{name, value};
  for (const char* known : {"+", "-", "*", "/", "%", "<<", ">>", "&", "^", "|"}) {
    if (by == known) return Change{name, fmt::format("{} {} ({})", name, by, value)};
  }
  return std::nullopt;
}

}  // namespace moesim::shell
