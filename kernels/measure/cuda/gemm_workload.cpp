#include <fmt/format.h>

#include "kernels/measure/cuda/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads.hpp"
#include "kernels/measure/points/product_element.hpp"
#include "sim/base/random.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

constexpr int checked_elements = 64;

// Y[m, n] = X[m, k] W[n, k]^T, all row-major bf16, sums in fp32: what a framework's linear layer
// asks of cuBLAS.
class GemmWorkload : public RotatedWorkload, public Queueable {
 public:
  GemmWorkload(Context& context, const PointSpec& spec, std::uint64_t seed)
      : RotatedWorkload(context, rotation(context, spec.bytes)),
        m_(spec.params.at("m")),
        n_(spec.params.at("n")),
        k_(spec.params.at("k")),
        seed_(seed),
        cublas_(context.cublas()),
        x_(copies_ * m_ * k_),
        w_(copies_ * n_ * k_),
        y_(copies_ * m_ * n_) {
    launch_random_bf16(x_.data(), x_.size(), seed, 1, stream());
    launch_random_bf16(w_.data(), w_.size(), seed + 1, 1, stream());
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
    product.right_transposed = true;
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
      const auto x = download(x_.data() + row * k_, k_);
      const auto w = download(w_.data() + column * k_, k_);
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
  using Stream_ = ::moesim::Stream;
  std::size_t m_, n_, k_;
  std::uint64_t seed_;
  cublasHandle_t cublas_;
  DeviceBuffer<std::uint16_t> x_, w_, y_;
};

}  // namespace

std::unique_ptr<Workload> gemm_workload(Context& context, const PointSpec& spec,
                                        std::uint64_t seed) {
  return std::make_unique<GemmWorkload>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
