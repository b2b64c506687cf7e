#include "sim/model/precision.hpp"

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::model;

TEST_CASE("the bytes of each recipe") {
  // Scales: fp32 per 128 (block), 8 bits per 32 (MXFP8) and per 16 (NVFP4). A row of 7,168: 56 fp32
  // scales are 224 bytes, as are 224 8-bit ones; NVFP4 has 3,584 + 448.
  struct Row {
    const char* name;
    double element;
    std::int64_t dispatch_row;
    double weight;
    double weight_with_transposed;
    int padding;
  };
  const Row rows[] = {
      {"bf16", 2, 14'336, 2, 2, 1},
      {"fp8-delayed", 1, 7'168, 1, 2, 16},
      {"fp8-current", 1, 7'168, 1, 2, 16},
      {"fp8-block", 1.03125, 7'392, 2, 2, 16},
      {"mxfp8", 1.03125, 7'392, 2 * 1.03125, 2 * 1.03125, 32},
      {"nvfp4", 0.5625, 4'032, 2 * 0.5625, 2 * 0.5625, 128},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const Precision precision = parse_precision(row.name, "--precision");
    CHECK(std::string(name_of(precision)) == row.name);
    CHECK(element_bytes(precision) == row.element);
    CHECK(quantized_row_bytes(precision, 7168) == row.dispatch_row);
    CHECK(gemm_weight_bytes(precision, false) == row.weight);
    CHECK(gemm_weight_bytes(precision, true) == row.weight_with_transposed);
    CHECK(row_padding(precision) == row.padding);
    CHECK(row_padding(precision, true) == 256);
  }
}

TEST_CASE("a row ends with a scale of its own") {
  CHECK(quantized_row_bytes(Precision::fp8_block, 129) == 129 + 2 * 4);
  CHECK(quantized_row_bytes(Precision::mxfp8, 33) == 33 + 2);
  CHECK(quantized_row_bytes(Precision::nvfp4, 17) == 9 + 2);
}

TEST_CASE("FP8 dispatch and a bf16 combine save a quarter of the pair") {
  const auto row = [](Precision precision) {
    return static_cast<double>(quantized_row_bytes(precision, 7168));
  };
  const double pair = row(Precision::fp8_delayed) + row(Precision::bf16);
  CHECK(pair / (2 * row(Precision::bf16)) == 0.75);
}

TEST_CASE("weights keep their bf16 copy unless they are gathered in low precision") {
  CHECK(stored_weight_bytes(Precision::bf16, false, false) == 2);
  CHECK(stored_weight_bytes(Precision::fp8_current, false, false) == 3);
  CHECK(stored_weight_bytes(Precision::fp8_current, true, false) == 1);
  CHECK(stored_weight_bytes(Precision::mxfp8, true, false) == 2 * 1.03125);
  CHECK(gathered_weight_bytes(Precision::fp8_current, true) == 1);
  CHECK(gathered_weight_bytes(Precision::nvfp4, true) == 0.5625);
  CHECK(gathered_weight_bytes(Precision::fp8_block, false) == 2);
  CHECK_THROWS_WITH(stored_weight_bytes(Precision::fp8_block, true, false),
                    ContainsSubstring("fp8-block"));
}

TEST_CASE("quantising reads bf16 and writes each copy") {
  CHECK(quantize_bytes(Precision::bf16, 2) == 0);
  CHECK(quantize_bytes(Precision::fp8_delayed, 1) == 3);
  CHECK(quantize_bytes(Precision::fp8_current, 1) == 5);  // the largest element is sought first
  CHECK(quantize_bytes(Precision::mxfp8, 2) == 2 + 2 * 1.03125);
}

TEST_CASE("an unknown precision lists the known ones") {
  CHECK_THROWS_WITH(parse_precision("fp8", "--precision"), ContainsSubstring("fp8-delayed"));
  CHECK_THROWS_AS(parse_precision("fp16", "--precision"), moesim::UsageError);
}
