#include "sim/base/formats/csv.hpp"

#include <string>
#include <vector>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

using Row = std::vector<std::string>;

TEST_CASE("quoted fields hold commas, quotes and line breaks") {
  const CsvTable table =
      CsvTable::parse("op,note\ngemm,\"a, \"\"b\"\"\nc\"\nattention,\n\nmemory,x", "t.csv");
  CHECK(table.columns == Row{"op", "note"});
  REQUIRE(table.rows.size() == 3);
  CHECK(table.rows[0] == Row{"gemm", "a, \"b\"\nc"});
  CHECK(table.rows[1] == Row{"attention", ""});
  CHECK(table.rows[2] == Row{"memory", "x"});
  CHECK(table.lines == std::vector<std::size_t>{2, 4, 6});
}

TEST_CASE("line ends of Windows and a byte order mark are not content") {
  const CsvTable table = CsvTable::parse("\xEF\xBB\xBFop,m\r\ngemm,4\r\n", "t.csv");
  CHECK(table.columns == Row{"op", "m"});
  CHECK(table.rows == std::vector<Row>{{"gemm", "4"}});
}

TEST_CASE("columns are found by name") {
  const CsvTable table = CsvTable::parse("op,m\n", "t.csv");
  CHECK(table.rows.empty());
  CHECK(table.column("m") == 1);
  CHECK(table.find("n") == CsvTable::npos);
  CHECK_THROWS_WITH(table.column("n"), "t.csv: line 1: no column 'n'; the columns are op, m");
  const auto wide = CsvTable::parse("a,b,c,d,e,f,g,h,i,j,k,l,m,o\n", "w.csv");  // 14 columns
  CHECK_THROWS_WITH(
      wide.column("n"),
      "w.csv: line 1: no column 'n'; the columns are a, b, c, d, e, f, g, h, 2 more, k, l, m, o");
  CHECK_THROWS_WITH(
      CsvTable::parse("gpus;measured_ms\n8;900\n", "s.csv").column("measured_ms"),
      "s.csv: line 1: no column 'measured_ms'; it is separated by semicolons: separate by commas");
  CHECK_THROWS_WITH(CsvTable::parse("op\tm\n", "t.csv").column("m"),
                    "t.csv: line 1: no column 'm'; it is separated by tabs: separate by commas");
}

TEST_CASE("a malformed table names file and line") {
  CHECK_THROWS_WITH(CsvTable::parse("", "t.csv"), "t.csv: line 1: no header line");
  CHECK_THROWS_WITH(CsvTable::parse("a,b\n1,2\n3\n", "t.csv"),
                    "t.csv: line 3: 1 fields, but the header has 2");
  CHECK_THROWS_WITH(CsvTable::parse("a,b\n1,\"2\n3", "t.csv"),
                    "t.csv: line 2: a quoted field is never closed");
  CHECK_THROWS_AS(CsvTable::load("/nonexistent/t.csv"), UsageError);
}

TEST_CASE("a written line reads back") {
  const Row cells = {"plain", "with, comma", "with \"quote\"", "two\nlines", ""};
  CHECK(csv_line({"a", "b"}) == "a,b\n");
  const CsvTable table = CsvTable::parse("a,b,c,d,e\n" + csv_line(cells), "t.csv");
  CHECK(table.rows == std::vector<Row>{cells});
}
