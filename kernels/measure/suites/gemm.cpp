#include "kernels/measure/suites/gemm.hpp"

#include <array>

#include "sim/base/units.hpp"

namespace moesim::kernels::measure {

PointSpec gemm_point(std::int64_t m, std::int64_t n, std::int64_t k, const char* layout) {
  PointSpec spec;
  spec.op = "gemm";
  spec.params = {{"dtype", "bf16"}, {"layout", layout}, {"m", m}, {"n", n}, {"k", k}};
  const auto mm = static_cast<double>(m), nn = static_cast<double>(n), kk = static_cast<double>(k);
  spec.flops = 2 * mm * nn * kk;
  spec.bytes = bf16_bytes * (mm * kk + nn * kk + mm * nn);
  spec.held_bytes = 3 * spec.bytes;
  return spec;
}

namespace {

// Widths and depths of projections, FFNs and routers of the shipped models, and small ones between.
std::vector<PointSpec> gemm_points(Ranks) {
  struct Product {
    std::int64_t n, k;
  };
  constexpr std::array products{Product{4096, 4096},  Product{11008, 4096}, Product{4096, 11008},
                                Product{22016, 4096}, Product{12288, 4096}, Product{14336, 4096},
                                Product{4096, 14336}, Product{1024, 4096},  Product{4096, 512},
                                Product{2048, 2048},  Product{768, 2048},   Product{2048, 768},
                                Product{2048, 7168},  Product{7168, 2048},  Product{32000, 4096},
                                Product{64, 4096},    Product{256, 7168},   Product{1024, 1024}};
  std::vector<PointSpec> points;
  for (const std::int64_t m :
       {1, 16, 64, 128, 256, 384, 512, 1024, 1536, 2048, 3072, 4096, 8192, 16384}) {
    for (const Product& product : products) points.push_back(gemm_point(m, product.n, product.k));
  }
  // Gradients of weights: as large as the weights, as deep as there are rows.
  constexpr std::array weights{Product{4096, 4096},  Product{4096, 11008}, Product{4096, 22016},
                               Product{4096, 12288}, Product{4096, 14336}, Product{2048, 7168},
                               Product{4096, 7168},  Product{768, 2048}};
  for (const std::int64_t rows : {256, 512, 1024, 2048, 4096, 8192}) {
    for (const Product& weight : weights) {
      points.push_back(gemm_point(weight.n, weight.k, rows, gradient_layout));
    }
  }
  return points;
}

}  // namespace

Suite gemm_suite() {
  return {"gemm",
          "bf16 matrix products of cuBLAS: of activations by weights, and the weights' gradients",
          {"gemm"},
          1,
          gemm_points};
}

}  // namespace moesim::kernels::measure
