#include <fmt/format.h>

#include <cmath>
#include <set>

#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

enum class Kind { streaming, activation, normalization };

// [rows, columns] bf16: out = a, silu(a) b, or a over the root mean square of its row.
class MemoryBound : public RotatedWorkload, public Queueable {
 public:
  MemoryBound(Context& context, const PointSpec& spec, Kind kind, std::uint64_t seed)
      : RotatedWorkload(context, rotation(context, spec.bytes)),
        kind_(kind),
        rows_(spec.params.at("rows")),
        columns_(spec.params.at("columns")),
        a_(copies_ * rows_ * columns_),
        b_(kind == Kind::activation ? a_.size() : 0),
        out_(a_.size()) {
    launch_random_bf16(a_.data(), a_.size(), seed, 4, stream());
    if (b_.size() > 0) launch_random_bf16(b_.data(), b_.size(), seed + 1, 4, stream());
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }

  void queue(cudaStream_t on) override { launch_on(next_copy(), on); }

 protected:
  void launch(std::size_t copy) override { launch_on(copy, stream()); }
  void poison() override {
    MOESIM_CUDA(cudaMemsetAsync(out_.data(), 0xff, out_.size() * 2, stream()));
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }
  std::string check() override {
    for (const std::size_t row : std::set<std::size_t>{0, rows_ / 3, rows_ / 2, rows_ - 1}) {
      std::string wrong = check_row(row);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

 private:
  void launch_on(std::size_t copy, cudaStream_t on) {
    const std::size_t count = rows_ * columns_, at = copy * count;
    switch (kind_) {
      case Kind::streaming:
        return launch_copy(a_.data() + at, out_.data() + at, 2 * count, on);
      case Kind::activation:
        return launch_silu_mul(a_.data() + at, b_.data() + at, out_.data() + at, count, on);
      case Kind::normalization:
        return launch_rms_norm(a_.data() + at, out_.data() + at, static_cast<int>(rows_),
                               static_cast<int>(columns_), on);
    }
  }
  std::string check_row(std::size_t row) const {
    const auto a = download(a_.data() + row * columns_, columns_);
    const auto out = download(out_.data() + row * columns_, columns_);
    const auto b = kind_ == Kind::activation ? download(b_.data() + row * columns_, columns_) : a;
    double squares = 0;
    for (const std::uint16_t each : a) squares += bf16_value(each) * bf16_value(each);
    const double scale =
        1 / std::sqrt(squares / static_cast<double>(columns_) + double{rms_epsilon});
    for (std::size_t column = 0; column < columns_; ++column) {
      const double x = bf16_value(a[column]);
      double wanted = x;
      if (kind_ == Kind::activation) wanted = x / (1 + std::exp(-x)) * bf16_value(b[column]);
      if (kind_ == Kind::normalization) wanted = x * scale;
      if (!close(bf16_value(out[column]), wanted, 0)) {
        return fmt::format("element [{}, {}] is {}, expected {}", row, column,
                           bf16_value(out[column]), wanted);
      }
    }
    return "";
  }

  Kind kind_;
  std::size_t rows_, columns_;
  DeviceBuffer<std::uint16_t> a_, b_, out_;
};

}  // namespace

std::unique_ptr<Workload> memory_workload(Context& context, const PointSpec& spec,
                                          std::uint64_t seed) {
  const std::string kernel = spec.params.at("kernel");
  const Kind kind = kernel == "streaming"    ? Kind::streaming
                    : kernel == "activation" ? Kind::activation
                                             : Kind::normalization;
  return std::make_unique<MemoryBound>(context, spec, kind, seed);
}

}  // namespace moesim::kernels::measure::cuda
