#include "sim/base/formats/npy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cassert>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/text.hpp"

// The format is NumPy's NEP 1: magic, version, length of the header, a Python dictionary literal
// with descr, fortran_order and shape, then the values.
namespace moesim {

namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::size_t alignment = 64;

[[noreturn]] void refuse(const std::string& name, const std::string& reason) {
  throw BrokenDocument(fmt::format("{}: {}", name, reason));
}

std::uint32_t little_endian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t index = bytes.size(); index > 0; --index) {
    value = value << 8 | static_cast<unsigned char>(bytes[index - 1]);
  }
  return value;
}

// The literal behind 'key': in the header's dictionary.
std::string_view value_of(std::string_view header, std::string_view key, const std::string& name) {
  for (const char quote : {'\'', '"'}) {
    const std::string quoted = quote + std::string(key) + quote;
    const std::size_t at = header.find(quoted);
    if (at == std::string_view::npos) continue;
    const std::size_t colon = header.find(':', at + quoted.size());
    if (colon == std::string_view::npos) break;
    const std::size_t start = header.find_first_not_of(' ', colon + 1);
    if (start == std::string_view::npos) break;
    return header.substr(start);
  }
  refuse(name, fmt::format("the .npy header has no '{}'", key));
}

std::string parse_dtype(std::string_view text, const std::string& name) {
  if (text.starts_with('[')) {
    refuse(name, "it holds a structured array; plain numbers are needed");
  }
  const std::size_t end = text.empty() ? std::string_view::npos : text.find(text[0], 1);
  if (end == std::string_view::npos || (text[0] != '\'' && text[0] != '"')) {
    refuse(name, "the .npy header has no readable dtype");
  }
  std::string dtype(text.substr(1, end - 1));
  if (dtype.starts_with('>')) {
    refuse(name, fmt::format("dtype '{}' is big-endian; save little-endian values", dtype));
  }
  return dtype;
}

// NumPy has no bfloat16: ml_dtypes saves it as two bytes of no type.
bool is_bfloat16(std::string_view dtype) { return dtype == "|V2" || dtype == "<V2"; }

std::size_t size_of(const std::string& dtype, const std::string& name) {
  const bool plain =
      (dtype.size() >= 3 && std::string_view("fiub").find(dtype[1]) != std::string_view::npos) ||
      is_bfloat16(dtype);
  const std::optional<std::size_t> size =
      plain ? parse_number<std::size_t>(std::string_view(dtype).substr(2)) : std::nullopt;
  if (!size || *size == 0 || *size > 16) {
    refuse(name, fmt::format("dtype '{}' is not one of plain numbers", dtype));
  }
  return *size;
}

std::vector<std::int64_t> parse_shape(std::string_view text, const std::string& name) {
  const std::size_t close = text.find(')');
  if (!text.starts_with('(') || close == std::string_view::npos) {
    refuse(name, "the .npy header has no readable shape");
  }
  std::vector<std::int64_t> shape;
  std::string_view rest = text.substr(1, close - 1);
  while (true) {
    const std::size_t start = rest.find_first_not_of(" ,");
    if (start == std::string_view::npos) return shape;
    rest = rest.substr(start);
    const std::string_view digits = rest.substr(0, rest.find_first_of(" ,"));
    const std::optional<std::int64_t> length = parse_number<std::int64_t>(digits);
    if (!length || *length < 0) refuse(name, "the .npy header has no readable shape");
    shape.push_back(*length);
    rest = rest.substr(digits.size());
  }
}

std::size_t byte_count(const std::vector<std::int64_t>& shape, std::size_t size,
                       const std::string& name) {
  std::size_t count = size;
  for (const std::int64_t length : shape) {
    const auto factor = static_cast<std::size_t>(length);
    if (factor != 0 && count > std::numeric_limits<std::size_t>::max() / factor) {
      refuse(name, "its shape is too large");
    }
    count *= factor;
  }
  return count;
}

template <typename Value>
std::vector<Value> values_of(const NpyArray& array, std::string_view wanted,
                             std::string_view wanted_name) {
  if (array.dtype != wanted) {
    refuse(array.name, fmt::format("dtype '{}' instead of '{}': save it with .astype('{}')",
                                   array.dtype, wanted, wanted_name));
  }
  std::vector<Value> values(array.bytes.size() / sizeof(Value));
  if (!values.empty()) std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
  return values;
}

template <typename Stored>
std::vector<std::int64_t> widened(const NpyArray& array) {
  std::vector<std::int64_t> values(array.bytes.size() / sizeof(Stored));
  for (std::size_t at = 0; at < values.size(); ++at) {
    Stored value;
    std::memcpy(&value, array.bytes.data() + at * sizeof value, sizeof value);
    if (!std::in_range<std::int64_t>(value)) {
      refuse(array.name, fmt::format("value {} at place {} is above 2^63 - 1", value, at));
    }
    // An int8 is a number here. NOLINTNEXTLINE(bugprone-signed-char-misuse)
    values[at] = static_cast<std::int64_t>(value);
  }
  return values;
}

// The index of the value at a place in memory, slowest axis first.
std::vector<std::size_t> index_of(std::size_t place, const NpyArray& array) {
  std::vector<std::size_t> index(array.shape.size());
  for (std::size_t step = 0; step < index.size(); ++step) {
    const std::size_t axis = array.fortran_order ? step : index.size() - 1 - step;
    const auto length = static_cast<std::size_t>(array.shape[axis]);
    index[axis] = place % length;
    place /= length;
  }
  return index;
}

// IEEE 754 binary16: 5 bits of exponent, bias 15, 10 of fraction.
float from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int fraction = bits & 0x3ff;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 0x1f) {
    return fraction == 0 ? sign * std::numeric_limits<float>::infinity()
                         : std::numeric_limits<float>::quiet_NaN();
  }
  const int whole = exponent == 0 ? fraction : fraction + 0x400;
  return sign * std::ldexp(static_cast<float>(whole), (exponent == 0 ? 1 : exponent) - 25);
}

// Magic, version 1.0 and the dictionary, padded so that the values start on 64 bytes.
std::string header_of(const std::string& descr, const std::string& shape) {
  std::string dictionary =
      fmt::format("{{'descr': {}, 'fortran_order': False, 'shape': {}, }}", descr, shape);
  const std::size_t before = magic.size() + 4;
  dictionary.append(alignment - 1 - (before + dictionary.size()) % alignment, ' ');
  dictionary += '\n';
  assert(dictionary.size() <= std::numeric_limits<std::uint16_t>::max());
  std::string header(magic);
  header += '\x01';
  header += '\0';
  header += static_cast<char>(dictionary.size() & 0xff);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary;
}

// How NumPy makes a .npy file of what such a file holds; "" for any other.
std::string conversion(std::string_view name, std::string_view content) {
  const auto such = [](std::string_view of) {
    return fmt::format(": numpy.save('array.npy', {}) makes one of it", of);
  };
  if (content.starts_with("PK") && name.ends_with(".npz")) {
    return such("numpy.load(FILE)['NAME']") + "; moesim import takes it with --array NAME";
  }
  if (name.ends_with(".safetensors")) return such("safetensors.numpy.load_file(FILE)['NAME']");
  if (name.ends_with(".pt") || name.ends_with(".pth")) {
    return such("torch.load(FILE).float().numpy()");
  }
  if (name.ends_with(".csv")) return such("numpy.loadtxt(FILE, delimiter=',')");
  return name.ends_with(".txt") ? such("numpy.loadtxt(FILE)") : "";
}

}  // namespace

NpyArray NpyArray::load(const std::string& path) { return parse(read_file(path), path); }

NpyArray NpyArray::load_regular(const std::string& path) {
  return parse(read_regular_file(path), path);
}

NpyArray NpyArray::parse_any_order(const std::string& content, const std::string& name) {
  std::string_view rest(content);
  if (!rest.starts_with(magic)) {
    refuse(name,
           fmt::format("this is no .npy file (no NumPy signature){}", conversion(name, rest)));
  }
  if (rest.size() < magic.size() + 4) refuse(name, "the .npy header is cut off");
  const int major = static_cast<unsigned char>(rest[magic.size()]);
  if (major < 1 || major > 3) {
    refuse(name, fmt::format(".npy format {}.x is not known (1.0 to 3.0 are)", major));
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  rest.remove_prefix(magic.size() + 2);
  if (rest.size() < length_bytes) refuse(name, "the .npy header is cut off");
  const std::size_t length = little_endian(rest.substr(0, length_bytes));
  rest.remove_prefix(length_bytes);
  if (rest.size() < length) refuse(name, "the .npy header is cut off");
  const std::string_view header = rest.substr(0, length);
  rest.remove_prefix(length);

  NpyArray array;
  array.name = name;
  array.dtype = parse_dtype(value_of(header, "descr", name), name);
  const std::size_t size = size_of(array.dtype, name);
  array.shape = parse_shape(value_of(header, "shape", name), name);
  array.fortran_order =
      value_of(header, "fortran_order", name).starts_with("True") && array.shape.size() > 1;
  const std::size_t expected = byte_count(array.shape, size, name);
  if (rest.size() != expected) {
    refuse(name,
           fmt::format("{} bytes of values instead of {} for shape {} of '{}': the file is {}",
                       rest.size(), expected, array.shape_text(), array.dtype,
                       rest.size() < expected ? "truncated" : "longer than its header says"));
  }
  array.bytes = content.substr(content.size() - expected);
  return array;
}

NpyArray NpyArray::parse(const std::string& content, const std::string& name) {
  NpyArray array = parse_any_order(content, name);
  if (array.fortran_order) {
    refuse(name, "its order is Fortran's: save it with numpy.ascontiguousarray");
  }
  return array;
}

std::vector<float> NpyArray::float32() const { return values_of<float>(*this, "<f4", "float32"); }

std::vector<double> NpyArray::float64() const { return values_of<double>(*this, "<f8", "float64"); }

std::vector<float> NpyArray::float16_or_32() const {
  if (dtype != "<f2") return float32();
  std::vector<float> values(bytes.size() / 2);
  for (std::size_t at = 0; at < values.size(); ++at) {
    std::uint16_t half = 0;
    std::memcpy(&half, bytes.data() + at * sizeof half, sizeof half);
    values[at] = from_half(half);
  }
  return values;
}

bool NpyArray::is_floating() const {
  return dtype == "<f2" || dtype == "<f4" || dtype == "<f8" || is_bfloat16(dtype);
}

std::vector<float> NpyArray::floating() const {
  if (dtype == "<f8") {
    const std::vector<double> wide = float64();
    for (std::size_t at = 0; at < wide.size(); ++at) {
      if (std::abs(wide[at]) <= std::numeric_limits<float>::max() || !std::isfinite(wide[at])) {
        continue;
      }
      refuse(name,
             fmt::format("{:g} at [{}] is too {} for float32{}", wide[at],
                         fmt::join(index_of(at, *this), ", "), wide[at] > 0 ? "large" : "small",
                         wide[at] > 0 ? "" : ": where it masks, save -inf"));
    }
    return {wide.begin(), wide.end()};
  }
  return is_bfloat16(dtype) ? bfloat16_bits() : float16_or_32();
}

// bfloat16 is the upper half of a float.
std::vector<float> NpyArray::bfloat16_bits() const {
  if (!is_bfloat16(dtype) && dtype != "<u2" && dtype != "<i2") {
    refuse(name, fmt::format("dtype '{}' holds no bfloat16: that is two bytes a value", dtype));
  }
  std::vector<float> values(bytes.size() / 2);
  for (std::size_t at = 0; at < values.size(); ++at) {
    std::uint16_t upper = 0;
    std::memcpy(&upper, bytes.data() + at * sizeof upper, sizeof upper);
    values[at] = std::bit_cast<float>(static_cast<std::uint32_t>(upper) << 16);
  }
  return values;
}

std::vector<std::int64_t> NpyArray::integers() const {
  const std::string_view kind = std::string_view(dtype).substr(1);
  if (kind == "i1") return widened<std::int8_t>(*this);
  if (kind == "i2") return widened<std::int16_t>(*this);
  if (kind == "i4") return widened<std::int32_t>(*this);
  if (kind == "i8") return widened<std::int64_t>(*this);
  if (kind == "u1") return widened<std::uint8_t>(*this);
  if (kind == "u2") return widened<std::uint16_t>(*this);
  if (kind == "u4") return widened<std::uint32_t>(*this);
  if (kind == "u8") return widened<std::uint64_t>(*this);
  if (kind == "f2" || kind == "f4" || kind == "f8") {
    refuse(name, fmt::format("dtype '{}' instead of whole numbers: counts are saved with "
                             ".astype('int64'); router logits are routed by moesim route --logits",
                             dtype));
  }
  refuse(name,
         fmt::format("dtype '{}' instead of whole numbers: save it with .astype('int64')", dtype));
}

std::string NpyArray::shape_text() const { return fmt::format("[{}]", fmt::join(shape, ", ")); }

void write_npy_records(const std::string& path, const std::vector<NpyField>& fields,
                       std::int64_t count, std::string_view records) {
  std::string descr = "[";
  for (const NpyField& field : fields) {
    if (descr.size() > 1) descr += ", ";
    descr += fmt::format("('{}', '{}')", field.name, field.dtype);
  }
  descr += "]";
  std::string content = header_of(descr, fmt::format("({},)", count));
  content.append(records);
  write_file_atomically(path, content);
}

namespace {

template <typename Value>
void write_values(const std::string& path, const char* descr,
                  const std::vector<std::int64_t>& shape, const std::vector<Value>& values) {
  std::string text = "(";
  for (const std::int64_t length : shape) text += fmt::format("{}, ", length);
  if (shape.size() > 1) text.resize(text.size() - 2);
  text += ")";
  std::string content = header_of(descr, text);
  assert(byte_count(shape, sizeof(Value), path) == values.size() * sizeof(Value));
  content.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value));
  write_file_atomically(path, content);
}

}  // namespace

void write_npy_float32(const std::string& path, const std::vector<std::int64_t>& shape,
                       const std::vector<float>& values) {
  write_values(path, "'<f4'", shape, values);
}

void write_npy_int64(const std::string& path, const std::vector<std::int64_t>& shape,
                     const std::vector<std::int64_t>& values) {
  write_values(path, "'<i8'", shape, values);
}

}  // namespace moesim
