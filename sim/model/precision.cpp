#include "sim/model/precision.hpp"

#include "sim/base/error.hpp"
#include "sim/base/units.hpp"

namespace moesim::model {
namespace {

// Bits per element, and the elements and bytes of one scale; 0: one scale per tensor, or none.
struct Format {
  int bits;
  int per_scale;
  int scale_bytes;
};

Format format_of(Precision precision) {
  switch (precision) {
    case Precision::bf16:
      return {16, 0, 0};
    case Precision::fp8_delayed:
    case Precision::fp8_current:
      return {8, 0, 0};
    case Precision::fp8_block:
      return {8, 128, 4};
    case Precision::mxfp8:
      return {8, 32, 1};
    case Precision::nvfp4:
      return {4, 16, 1};
  }
  return {16, 0, 0};
}

std::int64_t divided_up(std::int64_t count, std::int64_t parts) {
  return (count + parts - 1) / parts;
}

}  // namespace

Precision parse_precision(const std::string& text, const std::string& where) {
  return value_in(precision_names, text, where);
}

const char* name_of(Precision precision) { return name_in(precision_names, precision); }

std::int64_t quantized_row_bytes(Precision precision, std::int64_t elements) {
  const Format format = format_of(precision);
  const std::int64_t scales =
      format.per_scale == 0 ? 0 : divided_up(elements, format.per_scale) * format.scale_bytes;
  return divided_up(elements * format.bits, 8) + scales;
}

double element_bytes(Precision precision) {
  const Format format = format_of(precision);
  const double scale =
      format.per_scale == 0 ? 0 : static_cast<double>(format.scale_bytes) / format.per_scale;
  return format.bits / 8.0 + scale;
}

double gemm_weight_bytes(Precision precision, bool transposed_copies) {
  switch (precision) {
    case Precision::bf16:
      return bf16_bytes;
    case Precision::fp8_delayed:
    case Precision::fp8_current:
      return transposed_copies ? 2 : 1;
    case Precision::fp8_block:
      return 2;  // scales per 128 x 128: 0.0002 bytes
    case Precision::mxfp8:
    case Precision::nvfp4:
      return 2 * element_bytes(precision);
  }
  return bf16_bytes;
}

double gathered_weight_bytes(Precision precision, bool low_precision) {
  if (!low_precision) return bf16_bytes;
  if (precision == Precision::fp8_block) {
    throw UsageError(
        "gathering weights in low precision: fp8-block has blocks that do not follow the shards; "
        "gather bf16, or choose fp8-delayed, fp8-current, mxfp8 or nvfp4");
  }
  return element_bytes(precision);
}

double stored_weight_bytes(Precision precision, bool low_precision_gather, bool transposed_copies) {
  if (precision == Precision::bf16) return bf16_bytes;
  gathered_weight_bytes(precision, low_precision_gather);
  return gemm_weight_bytes(precision, transposed_copies) + (low_precision_gather ? 0 : bf16_bytes);
}

double most_flops_beside_bf16(Precision precision) {
  const int bits = format_of(precision).bits;
  return bits == 16 ? 1 : bits == 8 ? 2 : 6;
}

int row_padding(Precision precision, bool fused_grouped_ffn) {
  if (fused_grouped_ffn) return 256;
  switch (precision) {
    case Precision::bf16:
      return 1;
    case Precision::fp8_delayed:
    case Precision::fp8_current:
    case Precision::fp8_block:
      return 16;
    case Precision::mxfp8:
      return 32;
    case Precision::nvfp4:
      return 128;
  }
  return 1;
}

double quantize_bytes(Precision precision, int directions) {
  if (precision == Precision::bf16) return 0;
  const double reads = precision == Precision::fp8_current ? 2 * bf16_bytes : bf16_bytes;
  return reads + directions * element_bytes(precision);
}

}  // namespace moesim::model
