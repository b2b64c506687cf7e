#include <fmt/format.h>

#include <vector>

#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "kernels/measure/points/product_element.hpp"
#include "kernels/measure/suites/gemm.hpp"
#include "kernels/measure/suites/sustained.hpp"
#include "sim/base/random.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

constexpr int checked_elements = 64;

// Y[m, n] = X[m, k] W[n, k]^T, all row-major bf16, sums in fp32: what a framework's linear layer
// asks of cuBLAS; or, in gradient_layout, X[k, m]^T W[k, n], as it asks for the gradient of
// weights.
class GemmWorkload : public RotatedWorkload, public Queueable {
 public:
  GemmWorkload(Context& context, const PointSpec& spec, std::uint64_t seed)
      : RotatedWorkload(context, rotation(context, spec.bytes)),
        m_(spec.params.at("m")),
        n_(spec.params.at("n")),
        k_(spec.params.at("k")),
        gradient_(spec.params.at("layout") == gradient_layout),
        seed_(seed),
        cublas_(context.cublas()),
        x_(copies_ * m_ * k_),
        w_(copies_ * n_ * k_),
        y_(copies_ * m_ * n_) {
    launch_random_bf16(x_.data(), x_.size(), seed, 1, stream());
    launch_random_bf16(w_.data(), w_.size(), seed + 1, 1, stream());
    clear_rows(spec.params.value(zero_share, 0.0));
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }

  void queue(cudaStream_t on) override {
    if (on == stream()) return launch(next_copy());
    // The workspace goes along: products of one point queue on one stream.
    DeviceBuffer<std::uint8_t>& workspace = context_.workspace;
    set_stream(cublas_, on, workspace.data(), workspace.size());
    launch(next_copy());
    set_stream(cublas_, stream(), workspace.data(), workspace.size());
  }

 protected:
  void launch(std::size_t copy) override {
    kernels::Gemm product;
    product.m = static_cast<std::int64_t>(m_);
    product.n = static_cast<std::int64_t>(n_);
    product.k = static_cast<std::int64_t>(k_);
    product.left_transposed = gradient_;
    product.right_transposed = !gradient_;
    run_gemm(cublas_, product, x_.data() + copy * m_ * k_, w_.data() + copy * n_ * k_,
             y_.data() + copy * m_ * n_);
  }
  void poison() override {
    MOESIM_CUDA(cudaMemsetAsync(y_.data(), 0xff, y_.size() * 2, stream()));
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }
  std::string check() override {
    Stream_ stream({seed_, Purpose::measurement, 1});
    for (int element = 0; element < checked_elements; ++element) {
      const auto row = static_cast<std::size_t>(stream.uniform() * static_cast<double>(m_));
      const auto column = static_cast<std::size_t>(stream.uniform() * static_cast<double>(n_));
      const auto x = factors(x_, row, m_);
      const auto w = factors(w_, column, n_);
      ProductElement wanted;
      for (std::size_t at = 0; at < k_; ++at) wanted.add(bf16_value(x[at]), bf16_value(w[at]));
      const double got = bf16_value(download(y_.data() + row * n_ + column, 1)[0]);
      if (!wanted.matches(got)) {
        return fmt::format("element [{}, {}] is {}, expected {}", row, column, got, wanted.value());
      }
    }
    return "";
  }

 private:
  // The last rows of every X, a share of them, become zeros: padding.
  void clear_rows(double share) {
    const std::size_t rows = static_cast<std::size_t>(share * static_cast<double>(m_));
    for (std::size_t copy = 0; copy < copies_ && rows > 0; ++copy) {
      MOESIM_CUDA(
          cudaMemsetAsync(x_.data() + (copy * m_ + m_ - rows) * k_, 0, 2 * rows * k_, stream()));
    }
  }
  // The k elements of X or W that make row or column `at` of the result, of `count`.
  std::vector<std::uint16_t> factors(const DeviceBuffer<std::uint16_t>& from, std::size_t at,
                                     std::size_t count) {
    if (!gradient_) return download(from.data() + at * k_, k_);
    if (column_.size() < k_) column_ = DeviceBuffer<std::uint16_t>(k_);
    launch_gather(from.data() + at, column_.data(), k_, count, stream());
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
    return download(column_.data(), k_);
  }

  using Stream_ = ::moesim::Stream;
  std::size_t m_, n_, k_;
  bool gradient_;
  std::uint64_t seed_;
  cublasHandle_t cublas_;
  DeviceBuffer<std::uint16_t> x_, w_, y_;
  DeviceBuffer<std::uint16_t> column_;  // what factors() gathers
};

}  // namespace

std::unique_ptr<Workload> gemm_workload(Context& context, const PointSpec& spec,
                                        std::uint64_t seed) {
  if (spec.params.at("dtype") != "bf16") return fp8_workload(context, spec, seed);
  return std::make_unique<GemmWorkload>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
