#include "sim/base/decimal.hpp"

#include <string>
#include <vector>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

namespace {

Decimal decimal(const std::string& text) { return Decimal::parse(text, "--capacity-factor"); }

std::vector<std::string> listed(const std::string& text) {
  std::vector<std::string> values;
  for (const Decimal& value : parse_decimal_list(text, "--capacity-factor")) {
    values.push_back(value.text());
  }
  return values;
}

}  // namespace

TEST_CASE("capacities are exact where doubles round up") {
  // 2.2 x 3,000 / 8 = 825 exactly; on doubles 825.0000000000001, hence 826.
  CHECK(decimal("2.2").ceil_of_product(3000, 8) == 825);
  // 0.6667 x 3 = 2.0001: three slots.
  CHECK(decimal("0.6667").ceil_of_product(3, 1) == 3);
  CHECK(decimal("1").ceil_of_product(16384, 8) == 2048);
  CHECK(decimal("1.25").ceil_of_product(16384, 8) == 2560);
  CHECK(decimal("0.000000001").ceil_of_product(1, 1) == 1);
  CHECK(decimal("0").ceil_of_product(16384, 8) == 0);
  CHECK(decimal("999999999.999999999").ceil_of_product(1'000'000'000, 1) ==
        999'999'999'999'999'999);
}

TEST_CASE("decimals compare and print by value") {
  CHECK(decimal("2.20") == decimal("2.2"));
  CHECK(decimal("0.5") < decimal("0.50001"));
  CHECK(decimal("10") > decimal("9.999999999"));
  CHECK(decimal(".5").text() == "0.5");
  CHECK(decimal("2.").text() == "2");
  CHECK(decimal("002.500").text() == "2.5");
  CHECK(decimal("0.05").text() == "0.05");
  CHECK(decimal("1.25").to_double() == 1.25);
  CHECK((decimal("0.1") + decimal("0.2")) == decimal("0.3"));
  CHECK(decimal("0.25") * 8 == decimal("2"));
}

TEST_CASE("what is not a decimal is refused by name") {
  for (const char* text : {"", ".", "-1", "+1", "1e", "e3", "1.2.3e1", "abc", "1.2.3", "1,5", " 1",
                           "1 ", "0x1", "nan", "inf", "1234567890", "0.1234567890"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(decimal(text), UsageError);
  }
  CHECK_THROWS_WITH(decimal("-1"), ContainsSubstring("--capacity-factor: '-1'"));
}

TEST_CASE("decimals with an exponent, as programs print small and large ones") {
  CHECK(decimal("1e-05") == decimal("0.00001"));
  CHECK(decimal("1.25e1") == decimal("12.5"));
  CHECK(decimal("1.25E+2") == decimal("125"));
  CHECK(decimal("12.5e-2") == decimal("0.125"));
  for (const char* text : {"1e-30", "1e30", "x1e2", "-1e2", ".e5", "1e+-0"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(decimal(text), UsageError);
  }
}

TEST_CASE("a decimal that is too long is named as it was typed") {
  CHECK_THROWS_WITH(decimal("1e-20"), ContainsSubstring("'1e-20' has more than 9 digits"));
}

TEST_CASE("ranges include their end, whatever the step") {
  CHECK(listed("0.5:2:0.5,3") == std::vector<std::string>{"0.5", "1", "1.5", "2", "3"});
  // Ten times 0.1 on doubles overshoots 1 (0.1 + 0.2 = 0.30000000000000004).
  CHECK(listed("0.1:0.3:0.1") == std::vector<std::string>{"0.1", "0.2", "0.3"});
  CHECK(listed("0.5:3:0.25").size() == 11);
  CHECK(listed("1:2:0.7") == std::vector<std::string>{"1", "1.7"});
  CHECK(listed("1:1:1") == std::vector<std::string>{"1"});
  CHECK(listed("2") == std::vector<std::string>{"2"});
}

TEST_CASE("a range that cannot be is refused") {
  for (const char* text :
       {"1:2", "1:2:3:4", "2:1:0.5", "1:2:0", "1,,2", ",", "1:x:2", "0:999999999:0.001"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(listed(text), UsageError);
  }
}

TEST_CASE("a sum or product of too many digits is refused") {
  CHECK((decimal("999999999") + decimal("0.5")).text() == "999999999.5");
  CHECK((decimal("1.25") * 4).text() == "5");
  CHECK_THROWS_WITH(decimal("999999999.999999999") * 100, ContainsSubstring("more than 18 digits"));
  CHECK_THROWS_AS(Decimal(10'000'000'000'000) + decimal("0.000000001"), Error);
}
