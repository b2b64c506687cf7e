#include "sim/network/exchange/exchange_files.hpp"

#include <unistd.h>

#include <filesystem>
#include <limits>
#include <string>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/npy.hpp"
#include "tests/support/catch.hpp"

using moesim::ByteMatrix;
using moesim::Picoseconds;
using moesim::network::load_byte_matrix;
using moesim::network::load_start_times;

namespace {

// A file that is gone with the test.
class TemporaryFile {
 public:
  TemporaryFile(const std::string& name, const std::string& content)
      : path_((std::filesystem::temp_directory_path() /
               ("moesim-" + std::to_string(::getpid()) + "-" + name))
                  .string()) {
    moesim::write_file_atomically(path_, content);
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;  // it would be removed twice
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

ByteMatrix matrix(const std::string& content) {
  return load_byte_matrix(TemporaryFile("m.csv", content).path());
}

std::vector<Picoseconds> starts(const std::string& content, int ranks) {
  return load_start_times(TemporaryFile("s.csv", content).path(), ranks);
}

// A .npy file of any plain dtype, format 1.0.
template <typename Value>
std::string npy(const std::string& dtype, const std::string& shape,
                const std::vector<Value>& values) {
  std::string header =
      "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.append(127 - 10 - header.size(), ' ');
  header += '\n';
  std::string content = "\x93NUMPY";
  content += {'\x01', '\x00', static_cast<char>(header.size()), '\x00'};
  content += header;
  content.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value));
  return content;
}

template <typename Value>
ByteMatrix npy_matrix(const std::string& dtype, const std::string& shape,
                      const std::vector<Value>& values) {
  return load_byte_matrix(TemporaryFile("m.npy", npy(dtype, shape, values)).path());
}

}  // namespace

TEST_CASE("a byte matrix is lines of numbers") {
  const ByteMatrix bytes = matrix("0,1,2\n3,4,5\n6,7,8\n");
  REQUIRE(bytes.ranks() == 3);
  CHECK(bytes.at(0, 1) == 1);
  CHECK(bytes.at(2, 0) == 6);
  CHECK(bytes.at(1, 1) == 4);
  CHECK(matrix("\xEF\xBB\xBF"
               " 0, 1e6\r\n\r\n1048576.0 ,0\r\n")
            .at(1, 0) == 1048576);
  CHECK(matrix("5").ranks() == 1);
}

TEST_CASE("a byte matrix of the wrong shape or content names line, column and reason") {
  CHECK_THROWS_WITH(matrix(""), ContainsSubstring("m.csv: line 1: no numbers"));
  CHECK_THROWS_WITH(matrix("0,1\n2,3\n4,5\n"),
                    ContainsSubstring("3 lines of 2 numbers: a byte matrix has as many lines"));
  CHECK_THROWS_WITH(matrix("0,1\n2\n"), ContainsSubstring("line 2: 1 numbers, but line 1 has 2"));
  CHECK_THROWS_WITH(
      matrix("0,1\n-5,0\n"),
      ContainsSubstring("m.csv: line 2, column 1: -5 bytes: a rank cannot send less"));
  CHECK_THROWS_WITH(matrix("0,1.5\n5,0\n"),
                    ContainsSubstring("line 1, column 2: 1.5 bytes: expected a whole number"));
  CHECK_THROWS_WITH(matrix("0,1\n\nnan,0\n"), ContainsSubstring("line 3, column 1: nan is no"));
  CHECK_THROWS_WITH(matrix("0,inf\n1,0\n"), ContainsSubstring("line 1, column 2: inf is no"));
  CHECK_THROWS_WITH(matrix("0,1e17\n1,0\n"), ContainsSubstring("more than 2^53"));
  CHECK_THROWS_WITH(matrix("0,9e15\n9e15,0\n"), ContainsSubstring("bytes in all"));
  CHECK_THROWS_WITH(matrix("0,1e999\n1,0\n"), ContainsSubstring("out of range"));
  CHECK_THROWS_WITH(matrix("0,\n1,0\n"), ContainsSubstring("line 1, column 2: the number is"));
  CHECK_THROWS_WITH(matrix("a,b\n1,0\n"), ContainsSubstring("a header line is not expected"));
  CHECK_THROWS_WITH(matrix("0,1\n0x3,0\n"), ContainsSubstring("line 2, column 1: '0x3' is no"));
  CHECK_THROWS_WITH(load_byte_matrix("/nonexistent/m.csv"),
                    ContainsSubstring("/nonexistent/m.csv"));
}

TEST_CASE("a byte matrix may be a .npy file of any whole numbers") {
  CHECK(npy_matrix<std::int64_t>("<i8", "(2, 2)", {0, 1, 2, 3}).at(1, 0) == 2);
  CHECK(npy_matrix<std::uint64_t>("<u8", "(2, 2)", {0, 1, 2, 3}).at(1, 0) == 2);
  CHECK(npy_matrix<std::int32_t>("<i4", "(2, 2)", {0, 1, 2, 3}).at(1, 0) == 2);
  CHECK(npy_matrix<double>("<f8", "(2, 2)", {0, 1, 2, 3}).at(1, 0) == 2);
  CHECK(npy_matrix<float>("<f4", "(2, 2)", {0, 1, 2, 3}).at(1, 0) == 2);
  CHECK_THROWS_WITH(npy_matrix<float>("<f4", "(2, 2)", {0, 1, 2.5F, 3}),
                    ContainsSubstring("element [1, 0]: 2.5 bytes"));
  // Column by column, as a transposed array is saved.
  std::string fortran = npy<std::int64_t>("<i8", "(2, 2)", {0, 1, 2, 3});
  fortran.replace(fortran.find("False, "), 7, "True,  ");
  CHECK(load_byte_matrix(TemporaryFile("m.npy", fortran).path()).at(0, 1) == 2);
}

TEST_CASE("a bad .npy matrix names its shape, dtype or element") {
  CHECK_THROWS_WITH(npy_matrix<double>("<f8", "(1, 4)", {0, 1, 2, 3}),
                    ContainsSubstring("shape [1, 4]: a byte matrix of N ranks has shape [N, N]"));
  CHECK_THROWS_WITH(npy_matrix<double>("<f8", "(4,)", {0, 1, 2, 3}),
                    ContainsSubstring("shape [4]"));
  CHECK_THROWS_WITH(npy_matrix<double>("<f8", "(0, 0)", {}), ContainsSubstring("shape [0, 0]"));
  CHECK_THROWS_WITH(npy_matrix<std::int16_t>("<i2", "(1, 1)", {0}),
                    ContainsSubstring("dtype '<i2'"));
  CHECK_THROWS_WITH(npy_matrix<std::int64_t>("<i8", "(2, 2)", {0, 1, -2, 3}),
                    ContainsSubstring("m.npy: element [1, 0]: -2 bytes"));
  CHECK_THROWS_WITH(npy_matrix<double>("<f8", "(2, 2)", {0, 0.5, 2, 3}),
                    ContainsSubstring("element [0, 1]: 0.5 bytes"));
  CHECK_THROWS_WITH(npy_matrix<double>("<f8", "(1, 1)", {std::numeric_limits<double>::quiet_NaN()}),
                    ContainsSubstring("element [0, 0]: nan"));
  CHECK_THROWS_WITH(npy_matrix<std::uint64_t>("<u8", "(1, 1)", {~std::uint64_t{0}}),
                    ContainsSubstring("more than 2^53"));
  CHECK_THROWS_WITH(load_byte_matrix(TemporaryFile("x.npy", "1,2\n3,4\n").path()),
                    ContainsSubstring("no .npy file"));
}

TEST_CASE("start times are one row, one column or .npy, in microseconds") {
  const std::vector<Picoseconds> expected{Picoseconds(0), Picoseconds(50'000'000),
                                          Picoseconds(500)};
  CHECK(starts("0,50,0.0005\n", 3) == expected);
  CHECK(starts("0\n50\n0.0005\n", 3) == expected);
  const TemporaryFile file("s.npy", npy<double>("<f8", "(3,)", {0, 50, 0.0005}));
  CHECK(load_start_times(file.path(), 3) == expected);
}

TEST_CASE("bad start times name file, line and reason") {
  CHECK_THROWS_WITH(starts("0,50\n", 3), ContainsSubstring("s.csv: 2 start times for 3 ranks"));
  CHECK_THROWS_WITH(starts("", 3), ContainsSubstring("0 start times for 3 ranks"));
  CHECK_THROWS_WITH(starts("0,1\n2,3\n", 4), ContainsSubstring("line 1: 2 numbers: start times"));
  CHECK_THROWS_WITH(starts("0\n-1\n", 2), ContainsSubstring("line 2, column 1: -1 us"));
  CHECK_THROWS_WITH(starts("0,nan\n", 2), ContainsSubstring("line 1, column 2: nan is no start"));
  CHECK_THROWS_WITH(starts("0,1e15\n", 2), ContainsSubstring("ten days"));
  CHECK_THROWS_WITH(starts("us\n1\n", 1), ContainsSubstring("'us' is not a number"));
  const TemporaryFile square("s.npy", npy<double>("<f8", "(1, 2)", {0, 1}));
  CHECK_THROWS_WITH(load_start_times(square.path(), 2), ContainsSubstring("shape [1, 2]"));
  const TemporaryFile whole("s.npy", npy<std::int64_t>("<i8", "(2,)", {0, 1}));
  CHECK_THROWS_WITH(load_start_times(whole.path(), 2), ContainsSubstring("astype('float64')"));
}
