#include <fmt/format.h>

#include <cmath>

#include "kernels/measure/cuda/libraries/cudnn.hpp"
#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "kernels/measure/suites/attention.hpp"
#include "sim/base/random.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

// Scores of some units: shares that differ, so that a wrong key shows.
constexpr float query_scale = 4;
constexpr int drawn_rows = 8;

class Attention : public RotatedWorkload {
 public:
  Attention(Context& context, const PointSpec& spec, std::uint64_t seed)
      : RotatedWorkload(context, rotation(context, spec.bytes)),
        shape_(attention_shape(spec.params)),
        draws_({seed, Purpose::measurement, 5}),
        attention_(shape_, context.cudnn()),
        tokens_(static_cast<std::size_t>(shape_.batch * shape_.sequence)),
        query_width_(static_cast<std::size_t>(shape_.heads * shape_.head_dim)),
        key_width_(static_cast<std::size_t>(shape_.kv_heads * shape_.head_dim)),
        q_(copies_ * tokens_ * query_width_),
        k_(copies_ * tokens_ * key_width_),
        v_(copies_ * tokens_ * key_width_),
        out_(copies_ * tokens_ * query_width_),
        workspace_(static_cast<std::size_t>(attention_.workspace_bytes())) {
    launch_random_bf16(q_.data(), q_.size(), seed, query_scale, stream());
    launch_random_bf16(k_.data(), k_.size(), seed + 1, 1, stream());
    launch_random_bf16(v_.data(), v_.size(), seed + 2, 1, stream());
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }

  Params details() override { return {{"library", "cuDNN " + attention_.version()}}; }

 protected:
  void launch(std::size_t copy) override {
    const std::size_t query = copy * tokens_ * query_width_, key = copy * tokens_ * key_width_;
    attention_.run(q_.data() + query, k_.data() + key, v_.data() + key, out_.data() + query,
                   workspace_.data());
  }
  void poison() override {
    MOESIM_CUDA(cudaMemsetAsync(out_.data(), 0xff, out_.size() * 2, stream()));
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }
  std::string check() override {
    // A mask that is off by one shows in the first queries, whose keys are few.
    for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1}, shape_.sequence - 1}) {
      std::string wrong = check_row(draw(shape_.batch), draw(shape_.heads), row);
      if (!wrong.empty()) return wrong;
    }
    for (int each = 0; each < drawn_rows; ++each) {
      std::string wrong = check_row(draw(shape_.batch), draw(shape_.heads), draw(shape_.sequence));
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

 private:
  std::int64_t draw(std::int64_t below) {
    return static_cast<std::int64_t>(draws_.uniform() * static_cast<double>(below));
  }
  // One head of `count` tokens in a row, [count, head_dim].
  std::vector<double> head(const DeviceBuffer<std::uint16_t>& from, std::size_t width,
                           std::int64_t token, std::int64_t place, std::int64_t count) const {
    const auto dim = static_cast<std::size_t>(shape_.head_dim);
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(count) * dim);
    const std::uint16_t* first = from.data() + static_cast<std::size_t>(token) * width +
                                 static_cast<std::size_t>(place) * dim;
    MOESIM_CUDA(cudaMemcpy2D(bits.data(), 2 * dim, first, 2 * width, 2 * dim,
                             static_cast<std::size_t>(count), cudaMemcpyDeviceToHost));
    std::vector<double> values;
    for (const std::uint16_t each : bits) values.push_back(bf16_value(each));
    return values;
  }
  std::string check_row(std::int64_t batch, std::int64_t place, std::int64_t row) const {
    const std::int64_t start = batch * shape_.sequence;
    const std::int64_t group = place / (shape_.heads / shape_.kv_heads);
    const AttentionRow wanted = attention_row(head(q_, query_width_, start + row, place, 1),
                                              head(k_, key_width_, start, group, row + 1),
                                              head(v_, key_width_, start, group, row + 1));
    const std::vector<double> got = head(out_, query_width_, start + row, place, 1);
    for (std::size_t at = 0; at < got.size(); ++at) {
      // The shares are rounded to bf16 before they meet the values.
      if (!close(got[at], wanted.out[at], wanted.size[at] * 0x1p-8)) {
        return fmt::format("sequence {}, head {}, token {}: element {} is {}, expected {}", batch,
                           place, row, at, got[at], wanted.out[at]);
      }
    }
    return "";
  }

  profile::AttentionShape shape_;
  ::moesim::Stream draws_;
  CudnnAttention attention_;
  std::size_t tokens_, query_width_, key_width_;
  DeviceBuffer<std::uint16_t> q_, k_, v_, out_;
  DeviceBuffer<std::uint8_t> workspace_;
};

}  // namespace

std::unique_ptr<Workload> attention_workload(Context& context, const PointSpec& spec,
                                             std::uint64_t seed) {
  return std::make_unique<Attention>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
