#include "kernels/measure/suites/sustained.hpp"

#include <cmath>

#include "kernels/measure/suites/gemm.hpp"
#include "kernels/measure/suites/gemm_fp8.hpp"

namespace moesim::kernels::measure {
namespace {

// NVML's power is an average over a second, and the clock follows it.
constexpr double heat_s = 2;
// About a tenth of a second of a product that holds 700 TFLOP/s in bf16.
constexpr double sample_flops = 70e12;

PointSpec without_rest(PointSpec spec) {
  spec.op = sustained_op;
  spec.heat_s = heat_s;
  spec.calls = static_cast<std::size_t>(std::ceil(sample_flops / spec.flops));
  return spec;
}

std::vector<PointSpec> sustained_points(Ranks) {
  constexpr std::int64_t size = 8192;
  std::vector<PointSpec> points(2, without_rest(gemm_point(size, size, size)));
  points.back().params[zero_share] = 0.5;
  for (const char* dtype : {fp8_tensor, fp8_block}) {
    points.push_back(without_rest(fp8_gemm_point(dtype, size, size, size)));
  }
  return points;
}

}  // namespace

Suite sustained_suite() {
  return {"sustained",
          "a product in bf16 and FP8 for seconds without a rest, with its clock and power",
          {},
          1,
          sustained_points};
}

}  // namespace moesim::kernels::measure
