#include "sim/base/units.hpp"

#include <clocale>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

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
