#include "sim/shell/conditions.hpp"

#include <map>
#include <sstream>

#include "sim/shell/arithmetic.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::shell;

namespace {

const std::map<std::string, std::string> variables = {{"N", "4"}, {"NAME", "mixtral-8x7b"}};

std::optional<std::int64_t> number(const std::string& text) {
  return arithmetic_of(text, [](const std::string& name) -> std::optional<std::string> {
    const auto known = variables.find(name);
    return known == variables.end() ? std::nullopt : std::optional(known->second);
  });
}

// Whether a condition holds, given as words with a space between two; _ is an empty one.
Truth condition(const std::string& text, bool is_double) {
  std::vector<ConditionWord> words;
  std::istringstream all(text);
  for (std::string word; all >> word;) {
    const bool is_sign =
        is_double && (word == "&&" || word == "||" || word == "!" || word == "(" || word == ")");
    if (word == "_") word.clear();
    words.push_back({word, word, is_sign});
  }
  return condition_of(
      words, {is_double, number, [](const std::string& name) { return variables.contains(name); }});
}

}  // namespace

TEST_CASE("shell conditions: words and numbers are compared") {
  for (const char* text :
       {"a", "a = a", "a == a", "a != b", "3 -eq 03", "3 -ne 4", "3 -lt 4", "4 -le 4", "5 -gt 4",
        "4 -ge 4", "-n a", "-z _", "a < b", "b > a", "-v N"}) {
    INFO(text);
    CHECK(condition(text, false) == Truth::yes);
    CHECK(condition(text, true) == (std::string(text) == "3 -eq 03" ? Truth::maybe : Truth::yes));
    CHECK(condition(std::string("! ") + text, false) == Truth::no);
  }
  for (const char* text :
       {"_", "a = b", "a != a", "3 -eq 4", "-n _", "-z a", "x -eq 1", "= 1", ""}) {
    INFO(text);
    CHECK(condition(text, false) == Truth::no);
  }
}

TEST_CASE("shell conditions: what is not in the script is not known") {
  for (const char* text : {"$A", "$A = a", "a = ${A}", "$A -eq 1", "-n $A", "-z `x`", "-f a",
                           "-d a", "a -nt b", "-v X"}) {
    INFO(text);
    CHECK(condition(text, false) == Truth::maybe);
    CHECK(condition(text, true) == Truth::maybe);
  }
}

TEST_CASE("shell conditions: and, or and brackets") {
  CHECK(condition("a = a -a b = c", false) == Truth::no);
  CHECK(condition("a = a -o b = c", false) == Truth::yes);
  CHECK(condition("a = b -o a = a -a b = b", false) == Truth::yes);
  CHECK(condition("( a = b -o a = a ) -a ! b = b", false) == Truth::no);
  CHECK(condition("$A = b -o a = a", false) == Truth::yes);
  CHECK(condition("$A = b -a a = b", false) == Truth::no);
  CHECK(condition("a == b || ( a == a && ! b == c )", true) == Truth::yes);
  CHECK(condition("$A && a == a", true) == Truth::maybe);
  CHECK(condition("a == a &&", true) == Truth::maybe);
  CHECK(condition("( a == a", true) == Truth::maybe);
}

TEST_CASE("shell conditions: double brackets have patterns and arithmetic") {
  CHECK(condition("mixtral-8x7b == *8x7b", true) == Truth::yes);
  CHECK(condition("mixtral-8x7b == *8x22b", true) == Truth::no);
  CHECK(condition("mixtral-8x7b = *8x7b", false) == Truth::no);
  CHECK(condition("N*2 -eq 8", true) == Truth::yes);
  CHECK(condition("M -eq 8", true) == Truth::maybe);
  CHECK(condition("_ -eq 0", true) == Truth::yes);
  CHECK(condition("mixtral-8x7b =~ 8x7", true) == Truth::yes);
  CHECK(condition("mixtral-8x7b =~ ^8x7", true) == Truth::no);
  CHECK(condition("mixtral-8x7b =~ 7b$", true) == Truth::yes);
  CHECK(condition("mixtral-8x7b =~ ^mix.*$", true) == Truth::maybe);
}

TEST_CASE("shell conditions: patterns") {
  CHECK(matches("abc", "a*c") == Truth::yes);
  CHECK(matches("abcabd", "*a?d") == Truth::yes);
  CHECK(matches("abc", "a?") == Truth::no);
  CHECK(matches("b2", "[a-c][!a-z]") == Truth::yes);
  CHECK(matches("d2", "[a-c]?") == Truth::no);
  CHECK(matches("[a", "[a") == Truth::yes);
  CHECK(matches("-", "[a-]") == Truth::yes);
  CHECK(matches("", "*") == Truth::yes);
  CHECK(matches("$A", "*") == Truth::yes);
  CHECK(matches("$A", "a*") == Truth::maybe);
  CHECK(matches("a", "@(a|b)") == Truth::maybe);
  CHECK(matches("a*", quoted_pattern("a*")) == Truth::yes);
  CHECK(matches("ab", quoted_pattern("a*")) == Truth::no);
  // Each star may be tried once at each letter alone.
  CHECK(matches(std::string(20'000, 'a'), "*a*a*a*a*a*a*a*a*b") == Truth::no);
}

TEST_CASE("shell arithmetic: operators have a shell's order") {
  CHECK(number("2 + 3 * 4 % 5") == 4);
  CHECK(number("2 ** 3 ** 2") == 512);
  CHECK(number("7 - 2 - 1") == 4);
  CHECK(number("N > 2 && N <= 4 || 0") == 1);
  CHECK(number("!N + 1") == 1);
  CHECK(number("N == 4 ? N > 8 ? 1 : 2 : 3") == 2);
  CHECK(number("6 + -N") == 2);
  CHECK(number("(1 + 2) * (3)") == 9);
  for (const char* unknown : {"", "M", "1 << 2", "N & 1", "1 / 0", "1 % 0", "2 ** 63", "2 ** -1",
                              "010", "0x10", "1 +", "(1", "1 ? 2", "N = 2", "4294967296"}) {
    INFO(unknown);
    CHECK_FALSE(number(unknown));
  }
  CHECK_FALSE(number(std::string(100'000, '(')));
  CHECK_FALSE(number(std::string(100'000, '!') + "1"));
}

TEST_CASE("shell arithmetic: what changes a variable") {
  const auto changed = [](const std::string& text) {
    const auto change = change_in(text);
    return change ? change->name + ": " + change->value : "";
  };
  CHECK(changed(" N *= 4 + 1 ") == "N: N * ( 4 + 1)");
  CHECK(changed("N=2") == "N: 2");
  CHECK(changed("N++") == "N: N + 1");
  CHECK(changed("--N") == "N: N - 1");
  for (const char* none : {"N", "N == 2", "N >= 2", "N != 2", "2", "N + 1", ""}) {
    CHECK(changed(none).empty());
  }
}
