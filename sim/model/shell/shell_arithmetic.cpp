#include "sim/model/shell/shell_arithmetic.hpp"

#include <cstddef>
#include <limits>

#include "sim/base/text.hpp"
#include "sim/model/shell/shell_text.hpp"

namespace moesim::model {
namespace {

// One operator of a shell; nothing where the result is no number of 64 bits.
std::optional<std::int64_t> applied(char by, std::int64_t one, std::int64_t other) {
  std::int64_t result = 0;
  switch (by) {
    case '+':
      return __builtin_add_overflow(one, other, &result) ? std::nullopt : std::optional(result);
    case '-':
      return __builtin_sub_overflow(one, other, &result) ? std::nullopt : std::optional(result);
    case '*':
      return __builtin_mul_overflow(one, other, &result) ? std::nullopt : std::optional(result);
    case '/': {
      const bool too_large = other == -1 && one == std::numeric_limits<std::int64_t>::min();
      return other == 0 || too_large ? std::nullopt : std::optional(one / other);
    }
    default:
      return std::nullopt;
  }
}

// A sum of products of whole numbers, variables and such sums in brackets; nothing for another.
class Arithmetic {
 public:
  Arithmetic(const std::string& text, const ShellLookup& lookup) : text_(text), lookup_(lookup) {}

  std::optional<std::int64_t> value() {
    const std::optional<std::int64_t> all = sum();
    return at_ == text_.size() ? all : std::nullopt;
  }

 private:
  // Up to the end or a closing bracket.
  std::optional<std::int64_t> sum() {
    std::optional<std::int64_t> sum = 0;
    char sign = '+';
    while (true) {
      const std::optional<std::int64_t> term = product();
      if (!term) return std::nullopt;
      sum = applied(sign, *sum, *term);
      skip();
      if (!sum || at_ == text_.size() || text_[at_] == ')') return sum;
      sign = text_[at_++];
      if (sign != '+' && sign != '-') return std::nullopt;
    }
  }

  void skip() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }

  std::optional<std::int64_t> product() {
    std::optional<std::int64_t> value = operand();
    while (value) {
      skip();
      if (at_ == text_.size() || (text_[at_] != '*' && text_[at_] != '/')) return value;
      const char by = text_[at_++];
      const std::optional<std::int64_t> next = operand();
      if (!next) return std::nullopt;
      value = applied(by, *value, *next);
    }
    return value;
  }

  std::optional<std::int64_t> operand() {
    skip();
    if (at_ < text_.size() && text_[at_] == '(') {
      constexpr int deepest = 50;
      if (++depth_ > deepest) return std::nullopt;
      ++at_;
      const std::optional<std::int64_t> inner = sum();
      if (!inner || at_ == text_.size()) return std::nullopt;
      ++at_;
      --depth_;
      return inner;
    }
    std::string word;
    while (at_ < text_.size() &&
           (is_name(text_[at_]) || text_[at_] == '$' || text_[at_] == '{' || text_[at_] == '}')) {
      if (is_name(text_[at_])) word += text_[at_];
      ++at_;
    }
    const auto number = parse_number<std::int64_t>(lookup_(word).value_or(word));
    return number && *number < (std::int64_t{1} << 31) ? number : std::nullopt;
  }

  const std::string& text_;
  const ShellLookup& lookup_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::optional<std::int64_t> shell_arithmetic(const std::string& text, const ShellLookup& lookup) {
  return Arithmetic(text, lookup).value();
}

}  // namespace moesim::model
