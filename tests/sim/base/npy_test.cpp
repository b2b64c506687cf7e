#include "sim/base/formats/npy.hpp"

#include <cstdio>
#include <cstring>
#include <limits>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

namespace {

// A .npy file of version 1.0 with any header and values.
std::string npy(const std::string& dictionary, const std::string& values) {
  std::string content = std::string("\x93NUMPY\x01", 7) + std::string(1, '\0');
  const std::string header = dictionary + "\n";
  content += static_cast<char>(header.size() & 0xff);
  content += static_cast<char>(header.size() >> 8);
  return content + header + values;
}

std::string dictionary(const std::string& dtype, const std::string& shape,
                       const std::string& order = "False") {
  return "{'descr': '" + dtype + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
}

void refused(const std::string& content, const std::string& part) {
  INFO(part);
  CHECK_THROWS_AS(NpyArray::parse(content, "x.npy"), UsageError);
  CHECK_THROWS_WITH(NpyArray::parse(content, "x.npy"),
                    ContainsSubstring("x.npy") && ContainsSubstring(part));
}

}  // namespace

TEST_CASE("an array of float32 comes back as it was written") {
  const std::string path = "npy_test.npy";
  const std::vector<float> values = {1, -2.5F, 3e-20F, 4, 5, 6};
  write_npy_float32(path, {1, 2, 3}, values);
  const NpyArray array = NpyArray::load(path);
  CHECK(array.shape == std::vector<std::int64_t>{1, 2, 3});
  CHECK(array.dtype == "<f4");
  CHECK(array.float32() == values);
  CHECK(array.shape_text() == "[1, 2, 3]");
  CHECK_THROWS_WITH(array.float64(), ContainsSubstring("astype('float64')"));
  // The values start on a multiple of 64 bytes, as the format asks.
  CHECK((read_file(path).size() - values.size() * 4) % 64 == 0);
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{6}, {2, 3}, {3, 2, 1}}) {
    write_npy_float32(path, shape, values);
    CHECK(NpyArray::load(path).shape == shape);
  }
  write_npy_float32(path, {0, 4}, {});
  CHECK(NpyArray::load(path).float32().empty());
  std::remove(path.c_str());
}

TEST_CASE("headers that NumPy writes are read") {
  const double value = 2.5;
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &value, 8);
  CHECK(NpyArray::parse(npy(dictionary("<f8", "(1,)"), bytes), "x").float64() ==
        std::vector<double>{2.5});
  CHECK(NpyArray::parse(npy(dictionary("<f8", "()"), bytes), "x").shape.empty());
  // A one-dimensional array is both C and Fortran ordered, and NumPy may say either.
  CHECK(NpyArray::parse(npy(dictionary("<f8", "(1,)", "True"), bytes), "x").float64().size() == 1);
  std::string second = npy(dictionary("<f8", "(1,)"), bytes);
  second[6] = '\x02';  // version 2.0: a header length of four bytes
  second.insert(10, std::string(2, '\0'));
  CHECK(NpyArray::parse(second, "x").float64() == std::vector<double>{2.5});
}

TEST_CASE("arrays that cannot be read say why") {
  const std::string eight(8, '\0');
  refused("", "no .npy file");
  refused("layer,expert\n0,1\n", "no .npy file");
  refused(std::string("\x93NUMPY", 6), "cut off");
  refused(npy(dictionary("<f4", "(2,)"), eight).substr(0, 30), "cut off");
  refused(npy(dictionary("<f4", "(3,)"), eight), "truncated");
  refused(npy(dictionary("<f4", "(1,)"), eight), "longer");
  refused(npy(dictionary("<f4", "(2, 1)", "True"), eight), "Fortran");
  refused(npy(dictionary(">f4", "(2,)"), eight), "big-endian");
  refused(npy(dictionary("|O", "(1,)"), eight), "plain numbers");
  refused(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", eight),
          "structured");
  refused(npy(dictionary("<f4", "(-2,)"), eight), "shape");
  refused(npy(dictionary("<f4", "2"), eight), "shape");
  refused(npy(dictionary("<f4", "(4611686018427387904, 8)"), eight), "too large");
  refused(npy("{'descr': '<f4', 'fortran_order': False}", eight), "'shape'");
  std::string future = npy(dictionary("<f4", "(2,)"), eight);
  future[6] = '\x09';
  refused(future, "format 9");
  CHECK_THROWS_AS(NpyArray::load("does_not_exist.npy"), UsageError);
}

TEST_CASE("a structured array is written whole or not at all") {
  const std::string path = "npy_records_test.npy";
  const std::string records("\x01\0\0\0\x02\0\0\0", 8);
  write_npy_records(path, {{"rank", "<i4"}}, 2, records);
  const std::string content = read_file(path);
  CHECK(content.find("'descr': [('rank', '<i4')]") != std::string::npos);
  CHECK(content.find("'shape': (2,)") != std::string::npos);
  CHECK(content.substr(content.size() - 8) == records);
  CHECK((content.size() - 8) % 64 == 0);
  std::remove(path.c_str());
  CHECK_THROWS_AS(write_npy_records("no_such_folder/x.npy", {{"rank", "<i4"}}, 2, records), Error);
}

TEST_CASE("whole numbers of any width are read, others refused") {
  const auto array = [](const std::string& dtype, const std::string& bytes, int count) {
    return NpyArray::parse(npy(dictionary(dtype, "(" + std::to_string(count) + ",)"), bytes),
                           "x.npy");
  };
  using Values = std::vector<std::int64_t>;
  CHECK(array("|i1", "\x01\xff", 2).integers() == Values{1, -1});
  CHECK(array("|u1", "\x01\xff", 2).integers() == Values{1, 255});
  CHECK(array("<i2", std::string("\x01\x00\xfe\xff", 4), 2).integers() == Values{1, -2});
  CHECK(array("<u4", std::string("\xff\xff\xff\xff", 4), 1).integers() == Values{4294967295});
  CHECK_THROWS_WITH(array("<u8", std::string(8, '\xff'), 1).integers(),
                    ContainsSubstring("above 2^63 - 1"));
  CHECK_THROWS_WITH(array("<f4", std::string(4, '\0'), 1).integers(),
                    ContainsSubstring("instead of whole numbers"));
}

TEST_CASE("float16 widens without loss") {
  // 1, -2.5, the least subnormal 2^-24, the largest 65504, -inf (IEEE 754 binary16).
  const std::string bytes("\x00\x3c\x00\xc1\x01\x00\xff\x7b\x00\xfc", 10);
  const std::vector<float> values =
      NpyArray::parse(npy(dictionary("<f2", "(5,)"), bytes), "x.npy").float16_or_32();
  CHECK(values ==
        std::vector<float>{1, -2.5F, 0x1p-24F, 65504, -std::numeric_limits<float>::infinity()});
}

TEST_CASE("float64 beyond float32 is refused with its place") {
  const auto array = [](double value, const std::string& order = "False") {
    const double values[] = {1, 2, 3, 4, value, -std::numeric_limits<double>::infinity()};
    const std::string bytes(reinterpret_cast<const char*>(values), sizeof values);
    return NpyArray::parse_any_order(npy(dictionary("<f8", "(2, 3)", order), bytes), "x.npy");
  };
  CHECK(array(-3e38).floating()[4] == -3e38F);
  CHECK_THROWS_WITH(array(1e300).floating(),
                    ContainsSubstring("x.npy: 1e+300 at [1, 1] is too large for float32"));
  CHECK_THROWS_WITH(array(-1e300).floating(),
                    ContainsSubstring("-1e+300 at [1, 1] is too small for float32") &&
                        ContainsSubstring("save -inf"));
  CHECK_THROWS_WITH(array(-1e300, "True").floating(), ContainsSubstring("-1e+300 at [0, 2]"));
}
