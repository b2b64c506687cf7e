#include "kernels/measure/suites/gemm_fp8.hpp"

#include <array>

#include "sim/base/units.hpp"

namespace moesim::kernels::measure {

PointSpec fp8_gemm_point(const std::string& dtype, std::int64_t m, std::int64_t n, std::int64_t k) {
  PointSpec spec;
  spec.op = "gemm";
  spec.params = {{"dtype", dtype}, {"layout", "x-wt"}, {"fast_accumulation", false},
                 {"m", m},         {"n", n},           {"k", k}};
  const auto mm = static_cast<double>(m), nn = static_cast<double>(n), kk = static_cast<double>(k);
  // As many of bf16's take as long: tensor cores are twice as fast in FP8.
  spec.flops = mm * nn * kk;
  spec.bytes = mm * kk + nn * kk + bf16_bytes * mm * nn;
  spec.held_bytes = 3 * spec.bytes;
  return spec;
}

namespace {

// A selection of the bf16 suite's.
std::vector<PointSpec> gemm_fp8_points(Ranks) {
  struct Product {
    std::int64_t n, k;
  };
  constexpr std::array products{Product{4096, 4096}, Product{14336, 4096}, Product{4096, 14336},
                                Product{1024, 4096}, Product{2048, 7168},  Product{7168, 2048},
                                Product{2048, 2048}, Product{768, 2048},   Product{2048, 768}};
  std::vector<PointSpec> points;
  for (const char* dtype : {fp8_tensor, fp8_block}) {
    for (const std::int64_t m : {16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}) {
      for (const auto& [n, k] : products) points.push_back(fp8_gemm_point(dtype, m, n, k));
    }
  }
  return points;
}

}  // namespace

Suite gemm_fp8_suite() {
  return {"gemm-fp8",
          "FP8 matrix products of cuBLASLt, scales per tensor, and by block where it is a Hopper",
          {"gemm"},
          1,
          gemm_fp8_points};
}

}  // namespace moesim::kernels::measure
