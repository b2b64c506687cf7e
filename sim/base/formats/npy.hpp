#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesim {

// NumPy's .npy files (format 1.0 to 3.0), little-endian, C order.

// An array of plain numbers as it lies in its file.
struct NpyArray {
  std::string name;                 // the file, for messages
  std::string dtype;                // "<f4", "<f8", "<i8", ...
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::string bytes;                // the values, shape's product times the size of dtype
  bool fortran_order = false;       // they lie column by column

  // Throws UsageError naming the file and the reason: not a .npy file, Fortran order, big-endian,
  // a structured or object array, a size that does not match the shape.
  static NpyArray load(const std::string& path);
  // The same of a file that a document names: no pipe, no device.
  static NpyArray load_regular(const std::string& path);
  static NpyArray parse(const std::string& content, const std::string& name);
  // The same, in Fortran order too.
  static NpyArray parse_any_order(const std::string& content, const std::string& name);

  // The values. Throw UsageError naming the file when its dtype is another one: nothing is
  // converted in silence.
  std::vector<float> float32() const;
  std::vector<double> float64() const;
  // float32 as it is, float16 widened, which loses nothing.
  std::vector<float> float16_or_32() const;
  // float16, bfloat16 (two bytes of no numeric type, as the package ml_dtypes saves it), float32,
  // or float64 rounded to the nearest float.
  std::vector<float> floating() const;
  // The same of bfloat16 stored as 16-bit integers, as tensor.view(torch.uint16) gives them.
  std::vector<float> bfloat16_bits() const;
  bool is_floating() const;  // whether floating() takes it
  // Whole numbers of any width, signed or not (not bool). UsageError too for one above 2^63 - 1.
  std::vector<std::int64_t> integers() const;
  // "[8, 128, 64]", for messages.
  std::string shape_text() const;
};

// A field of a structured array; `dtype` in NumPy's spelling: "<i4", "<f4", "<U7".
struct NpyField {
  std::string name;
  std::string dtype;
};

// A one-dimensional structured array of packed records, written whole or not at all. Throws Error
// as write_file_atomically does. The length of `records` is count times the size of a record.
void write_npy_records(const std::string& path, const std::vector<NpyField>& fields,
                       std::int64_t count, std::string_view records);

// An array of float32 or int64, C order; for tests and examples as much as for tools.
void write_npy_float32(const std::string& path, const std::vector<std::int64_t>& shape,
                       const std::vector<float>& values);
void write_npy_int64(const std::string& path, const std::vector<std::int64_t>& shape,
                     const std::vector<std::int64_t>& values);

}  // namespace moesim
