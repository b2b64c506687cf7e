#include "sim/base/text.hpp"

#include "sim/base/enum_names.hpp"
#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

TEST_CASE("split keeps empty parts") {
  CHECK(split("a,,b", ',') == std::vector<std::string_view>{"a", "", "b"});
  CHECK(split("", ',') == std::vector<std::string_view>{""});
  CHECK(split("x:", ':') == std::vector<std::string_view>{"x", ""});
}

TEST_CASE("words are what stands between white space") {
  CHECK(words_of(" a\t\tbc \r") == std::vector<std::string>{"a", "bc"});
  CHECK(words_of("x") == std::vector<std::string>{"x"});
  CHECK(words_of(" \v\f\n").empty());
  CHECK(words_of("").empty());
}

TEST_CASE("white space at both ends is left out, and a part is found anywhere") {
  CHECK(trimmed(" \t\r\na b\n ") == "a b");
  CHECK(trimmed(" \r", " ") == "\r");
  CHECK(trimmed(" \n").empty());
  CHECK(trimmed("").empty());
  CHECK(has_part("8 SMs", " SMs"));
  CHECK(has_part("x", ""));
  CHECK_FALSE(has_part("SM", "SMs"));
}

TEST_CASE("a number is all of its text or none") {
  CHECK(parse_number<int>("-7") == -7);
  CHECK(parse_number<double>("1.5e3") == 1500.0);
  for (const char* text : {"", " 1", "1 ", "+1", "1x", "0x10", "2147483648"}) {
    CHECK_FALSE(parse_number<int>(text).has_value());
  }
  CHECK(is_whole_number("123456789012345678901234567890"));
  CHECK_FALSE(is_whole_number("1e3"));
  CHECK_FALSE(is_whole_number("-"));
}

TEST_CASE("digits are grouped by three from the right") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(132.4) == "132");
  CHECK(grouped(999.6) == "1,000");
  CHECK(grouped(13270499) == "13,270,499");
}

TEST_CASE("a whole number out of bounds says on which side, however long it is") {
  CHECK(parse_whole("--gpus", "8", 1, 16) == 8);
  CHECK(parse_whole("--gpus", "1e9", 1, 1000000000) == 1000000000);
  CHECK(parse_whole("--gpus", "1.25E+3", 1, 9999) == 1250);
  CHECK_THROWS_WITH(parse_whole("--gpus", "1.25e1", 1, 99),
                    "--gpus: '1.25e1' is not a whole number: give one from 1 to 99");
  for (const char* text : {"1e-3", "1e", "e3", "1.e3", ".5e3", "1.-5e3", "1e3.5", "-1.-5e3"}) {
    CHECK_FALSE(without_exponent(text).has_value());
  }
  CHECK_THROWS_WITH(parse_whole("--gpus", "17", 1, 16), "--gpus: 17 is too large: at most 16");
  CHECK_THROWS_WITH(parse_whole("--gpus", "99999999999999999999", 1, 16),
                    "--gpus: 99999999999999999999 is too large: at most 16");
  CHECK_THROWS_WITH(parse_whole("--gpus", "-99999999999999999999", 1, 16),
                    "--gpus: -99999999999999999999 is too small: at least 1");
  CHECK_THROWS_WITH(parse_whole("--gpus", "0", 1, 16), "--gpus: 0 is too small: at least 1");
  CHECK_THROWS_WITH(parse_whole("--gpus", "1.5", 1, 16),
                    "--gpus: '1.5' is not a whole number: give one from 1 to 16");
  // A suffix has two meanings.
  CHECK_THROWS_WITH(parse_whole("--sequence-length", "32k", 1, 1 << 20),
                    "--sequence-length: '32k' is not a whole number: write it out, 32768 or 32000");
  CHECK_THROWS_WITH(parse_whole("--gpus", "2M", 1, 1 << 24),
                    "--gpus: '2M' is not a whole number: write it out, 2097152 or 2000000");
  CHECK_THROWS_WITH(parse_whole("--gpus", "kk", 1, 16),
                    "--gpus: 'kk' is not a whole number: give one from 1 to 16");
}

namespace {
enum class Colour { red, green };
constexpr EnumNames<Colour, 2> colours{{{Colour::red, "red"}, {Colour::green, "green"}}};
}  // namespace

TEST_CASE("names of an enumeration are read and written by one table") {
  CHECK(std::string(name_in(colours, Colour::green)) == "green");
  CHECK(value_in(colours, "red", "--colour") == Colour::red);
  CHECK(find_in(colours, "green") == Colour::green);
  CHECK_FALSE(find_in(colours, "gree").has_value());
  CHECK_THROWS_WITH(
      value_in(colours, "gren", "--colour"),
      "--colour: unknown value 'gren' (did you mean 'green'?); choose from red, green");
}

TEST_CASE("control characters are written out for a terminal") {
  CHECK(printable("a\tb\nc") == "a\tb\nc");
  CHECK(printable(std::string_view("\x1b[2J\r\x7f\0", 7)) == "\\x1b[2J\\x0d\\x7f\\x00");
  CHECK(printable("caf\xc3\xa9 \xc2\xb5s") == "caf\xc3\xa9 \xc2\xb5s");
  CHECK(printable("\xc2\x9b") == "\\xc2\\x9b");  // U+009B: CSI
}
