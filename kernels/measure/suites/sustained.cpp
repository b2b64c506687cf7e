#include "kernels/measure/suites/sustained.hpp"

#include <cmath>

#include "kernels/measure/suites/gemm.hpp"

namespace moesim::kernels::measure {
namespace {

// NVML's power is an average over a second, and the clock follows it.
constexpr double heat_s = 2;
// About a tenth of a second of a product that holds 700 TFLOP/s.
constexpr double sample_flops = 70e12;

std::vector<PointSpec> sustained_points(Ranks) {
  PointSpec spec = gemm_point(8192, 8192, 8192);
  spec.op = sustained_op;
  spec.heat_s = heat_s;
  spec.calls = static_cast<std::size_t>(std::ceil(sample_flops / spec.flops));
  PointSpec padded = spec;
  padded.params[zero_share] = 0.5;
  return {spec, padded};
}

}  // namespace

Suite sustained_suite() {
  return {"sustained",
          "a bf16 product of cuBLAS for seconds without a rest, with its clock and power",
          {},
          1,
          sustained_points};
}

}  // namespace moesim::kernels::measure
