#include "sim/base/units.hpp"

#include <clocale>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

namespace {

template <class A, class B>
constexpr bool can_multiply = requires(A a, B b) {
  a* b;
};

}  // namespace

TEST_CASE("times are whole picoseconds") {
  CHECK(Picoseconds::from_us(1.5).count == 1'500'000);
  CHECK(Picoseconds::from_us(0.0000004).count == 0);
  CHECK(Picoseconds::from_us(0.0000006).count == 1);
  CHECK(Picoseconds::from_us(2e6).seconds() == 2);
  CHECK(Picoseconds(1'500'000'000).ms() == Approx(1.5));
  // A day of simulated time keeps its last picosecond.
  const Picoseconds day = Picoseconds::from_us(86400e6);
  CHECK((day + Picoseconds(1)) - day == Picoseconds(1));
  CHECK_THROWS_WITH(Picoseconds::from_us(200 * 86400e6), ContainsSubstring("of 200 days"));
}

// Two operations of 60 days each can be, a run of both not.
TEST_CASE("sums and differences of times beyond 106 days are errors, not other times") {
  const Picoseconds most(std::numeric_limits<std::int64_t>::max());
  const Picoseconds sixty_days = Picoseconds::from_us(60 * 86400e6);
  CHECK((sixty_days + Picoseconds(1)) - sixty_days == Picoseconds(1));
  CHECK_THROWS_WITH(sixty_days + sixty_days, ContainsSubstring("more than 106 days"));
  CHECK_THROWS_AS(most + Picoseconds(1), Error);
  CHECK_THROWS_AS(Picoseconds(-2) - most, Error);
  CHECK((most + Picoseconds(-1)) - most == Picoseconds(-1));
}

TEST_CASE("what is no time or no amount does not become one") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double wrong : {-1.0, nan, infinity, 1e13}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(Picoseconds::from_us(wrong), Error);
  }
  CHECK(Picoseconds::rounded(-2.6) == Picoseconds(-3));
  for (const double wrong : {nan, infinity, -infinity, 1e19, -1e19}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(Picoseconds::rounded(wrong), Error);
  }
  CHECK(Bytes::rounded(2.5e9) == Bytes(2'500'000'000));
  for (const double wrong : {-1.0, nan, infinity, 1e19}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(Bytes::rounded(wrong), Error);
  }
  CHECK_THROWS_WITH(Bytes(std::int64_t{1} << 62) + Bytes(std::int64_t{1} << 62),
                    ContainsSubstring("9.2e18 bytes"));
  CHECK_THROWS_AS(Bytes(std::int64_t{1} << 40) * (std::int64_t{1} << 30), Error);
  // Neither takes a double unchecked, and times have no product.
  CHECK_FALSE(std::is_constructible_v<Picoseconds, double>);
  CHECK_FALSE(std::is_constructible_v<Bytes, double>);
  CHECK_FALSE(can_multiply<Picoseconds, Picoseconds>);
  CHECK(can_multiply<Bytes, std::int64_t>);
}

TEST_CASE("sizes are parsed with decimal and binary suffixes") {
  CHECK(parse_bytes("512", "--bytes") == Bytes(512));
  CHECK(parse_bytes("512B", "--bytes") == Bytes(512));
  CHECK(parse_bytes("1e6", "--bytes") == Bytes(1'000'000));
  CHECK(parse_bytes("64MiB", "--bytes") == Bytes(67'108'864));
  CHECK(parse_bytes("64MB", "--bytes") == Bytes(64'000'000));
  CHECK(parse_bytes("1.5KiB", "--bytes") == Bytes(1536));
  CHECK(parse_bytes("2TiB", "--bytes") == Bytes(2'199'023'255'552));
}

TEST_CASE("what is not a size is refused by the name of its flag") {
  for (const char* text : {"", "0", "-4", " 4", "+4", "0.5", "1.5", "4 MB", "4mb", "MB", "inf",
                           "nan", "0x10", "1e30", "4MBx"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_bytes(text, "--bytes"), UsageError);
  }
  CHECK_THROWS_WITH(parse_bytes("lots", "--bytes"),
                    ContainsSubstring("--bytes: 'lots' is not a size"));
}

TEST_CASE("a size beyond any number is too large or too small, as it is") {
  CHECK_THROWS_WITH(parse_bytes("1e400", "--bytes"), ContainsSubstring("too large"));
  CHECK_THROWS_WITH(parse_bytes("1e-400", "--bytes"), ContainsSubstring("too small"));
}

TEST_CASE("a size has a decimal point in every locale") {
  const char* const set = std::setlocale(LC_NUMERIC, "de_DE.UTF-8");
  if (set == nullptr) MOESIM_SKIP("no locale with another decimal point is installed");
  const Bytes size = parse_bytes("1.5GiB", "--bytes");
  std::setlocale(LC_NUMERIC, "C");
  CHECK(size == Bytes(1'610'612'736));
}
