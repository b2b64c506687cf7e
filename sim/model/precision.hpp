#pragma once

#include <cstdint>
#include <string>

#include "sim/base/enum_names.hpp"

namespace moesim::model {

// Number formats of the GEMMs of a training step, as Transformer Engine's recipes have them.
// Embedding, output head, router, norms, core attention and the rows of the combine stay bf16.
enum class Precision { bf16, fp8_delayed, fp8_current, fp8_block, mxfp8, nvfp4 };

inline constexpr EnumNames<Precision, 6> precision_names{
    {{Precision::bf16, "bf16", "2 bytes, no scales"},
     {Precision::fp8_delayed, "fp8-delayed", "1 byte, one scale per tensor from earlier steps"},
     {Precision::fp8_current, "fp8-current", "1 byte, one scale per tensor from this one"},
     {Precision::fp8_block, "fp8-block", "1 byte, fp32 scales per 128, of weights per 128 x 128"},
     {Precision::mxfp8, "mxfp8", "1 byte, 8-bit scales per 32"},
     {Precision::nvfp4, "nvfp4", "4 bits, 8-bit scales per 16"}}};

// Throws UsageError "WHERE: ..." that lists the names.
Precision parse_precision(const std::string& text, const std::string& where);
const char* name_of(Precision precision);

// Bytes of a row of activations with its scales; one scale per tensor is left out.
std::int64_t quantized_row_bytes(Precision precision, std::int64_t elements);
// The same per element of a long row: 2, 1, 1.03125 or 0.5625.
double element_bytes(Precision precision);

// Bytes per element of the copies of a weight that GEMMs read: one by row and one by column where
// both cannot be read from one copy, which is so for scales in blocks, and for scales per tensor
// where `transposed_copies` (Hopper has no FP8 GEMM by column). NVFP4 and MXFP8 quantise each copy
// from high precision.
double gemm_weight_bytes(Precision precision, bool transposed_copies);

// Bytes per element of the weights that data-parallel ranks gather: bf16, or the recipe's with
// `low_precision`. Throws UsageError for fp8-block, whose frameworks gather bf16.
double gathered_weight_bytes(Precision precision, bool low_precision);

// Bytes per element of a weight in memory: the GEMMs' copies, and the bf16 one that is gathered
// unless the gather is in low precision.
double stored_weight_bytes(Precision precision, bool low_precision_gather, bool transposed_copies);

// Dense FLOP/s of tensor cores over those in bf16, the most of any GPU so far: 2 with 8 bits, 6
// with 4 (B300; B200 has 4).
double most_flops_beside_bf16(Precision precision);

// Rows of an expert are padded to a multiple of this (megatron/core, get_align_size_for_
// quantization); 256 with the fused grouped FFN that a capacity per rank needs.
int row_padding(Precision precision, bool fused_grouped_ffn = false);

// Bytes that quantising one element of an activation moves: bf16 read, `directions` copies written;
// a scale from this tensor reads it once more. 0 for bf16.
double quantize_bytes(Precision precision, int directions);

}  // namespace moesim::model
