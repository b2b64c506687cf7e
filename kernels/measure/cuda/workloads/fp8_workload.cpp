#include <fmt/format.h>

#include <string>

#include "kernels/measure/cuda/libraries/cublaslt_library.hpp"
#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "kernels/measure/points/fp8_scales.hpp"
#include "kernels/measure/points/product_element.hpp"
#include "kernels/measure/suites/gemm_fp8.hpp"
#include "sim/base/random.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

constexpr int checked_elements = 64;

const CublasLtHandle& usable(Context& context, bool by_block) {
  const CublasLtHandle& handle = context.cublas_lt();
  const DeviceFacts& facts = context.facts;
  const std::string trouble =
      fp8_trouble(by_block, facts.compute_major, facts.compute_minor, cublas_lt().get_version());
  if (!trouble.empty()) throw NotMeasurable(trouble);
  return handle;
}

// Y[m, n] = X[m, k] W[n, k]^T in FP8: random e4m3 values and random scales, so that a scale that is
// read from a wrong place shows.
class Fp8Workload : public RotatedWorkload, public Queueable {
 public:
  Fp8Workload(Context& context, const PointSpec& spec, std::uint64_t seed)
      : RotatedWorkload(context, rotation(context, spec.bytes)),
        by_block_(spec.params.at("dtype") == fp8_block),
        m_(spec.params.at("m")),
        n_(spec.params.at("n")),
        k_(spec.params.at("k")),
        scales_(by_block_, m_, n_, k_),
        seed_(seed),
        x_(copies_ * m_ * k_),
        w_(copies_ * n_ * k_),
        x_scales_(scales_of_copy(scales_.of_x()) * copies_),
        w_scales_(scales_of_copy(scales_.of_w()) * copies_),
        y_(copies_ * m_ * n_),
        product_(usable(context, by_block_), shape(), operands(0), context.workspace.size()) {
    launch_random_e4m3(x_.data(), x_.size(), seed, stream());
    launch_random_e4m3(w_.data(), w_.size(), seed + 1, stream());
    launch_random_scales(x_scales_.data(), x_scales_.size(), seed + 2, stream());
    launch_random_scales(w_scales_.data(), w_scales_.size(), seed + 3, stream());
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }

  void queue(cudaStream_t on) override { run(next_copy(), on); }

  Params details() override {
    const std::size_t version = cublas_lt().get_version();
    return {{"library", fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100,
                                    version % 100)}};
  }

 protected:
  void launch(std::size_t copy) override { run(copy, stream()); }
  void poison() override {
    MOESIM_CUDA(cudaMemsetAsync(y_.data(), 0xff, y_.size() * 2, stream()));
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }
  std::string check() override {
    const auto x_scales = download(x_scales_.data(), scales_.of_x());
    const auto w_scales = download(w_scales_.data(), scales_.of_w());
    ::moesim::Stream draws({seed_, Purpose::measurement, 6});
    for (int element = 0; element < checked_elements; ++element) {
      const auto row = static_cast<std::size_t>(draws.uniform() * static_cast<double>(m_));
      const auto column = static_cast<std::size_t>(draws.uniform() * static_cast<double>(n_));
      const auto x = download(x_.data() + row * k_, k_);
      const auto w = download(w_.data() + column * k_, k_);
      ProductElement wanted;
      for (std::size_t at = 0; at < k_; ++at) {
        wanted.add(e4m3_value(x[at]) * double{x_scales[scales_.x_place(row, at)]},
                   e4m3_value(w[at]) * double{w_scales[scales_.w_place(column, at)]});
      }
      const double got = bf16_value(download(y_.data() + row * n_ + column, 1)[0]);
      if (!wanted.matches(got)) {
        return fmt::format("element [{}, {}] is {}, expected {}", row, column, got, wanted.value());
      }
    }
    return "";
  }

 private:
  void run(std::size_t copy, cudaStream_t on) {
    product_.run(operands(copy), context_.workspace.data(), on);
  }
  // Each copy's scales begin at a multiple of 256 bytes.
  static std::size_t scales_of_copy(std::size_t count) { return (count + 63) / 64 * 64; }
  Fp8Shape shape() const {
    return {static_cast<std::int64_t>(m_), static_cast<std::int64_t>(n_),
            static_cast<std::int64_t>(k_), by_block_};
  }
  Fp8Operands operands(std::size_t copy) const {
    return {x_.data() + copy * m_ * k_, w_.data() + copy * n_ * k_,
            x_scales_.data() + copy * scales_of_copy(scales_.of_x()),
            w_scales_.data() + copy * scales_of_copy(scales_.of_w()), y_.data() + copy * m_ * n_};
  }

  bool by_block_;
  std::size_t m_, n_, k_;
  Fp8Scales scales_;
  std::uint64_t seed_;
  DeviceBuffer<std::uint8_t> x_, w_;
  DeviceBuffer<float> x_scales_, w_scales_;
  DeviceBuffer<std::uint16_t> y_;
  Fp8Product product_;
};

}  // namespace

std::unique_ptr<Workload> fp8_workload(Context& context, const PointSpec& spec,
                                       std::uint64_t seed) {
  context.cublas();                                       // whose workspace this takes
  usable(context, spec.params.at("dtype") == fp8_block);  // before memory is filled
  return std::make_unique<Fp8Workload>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
