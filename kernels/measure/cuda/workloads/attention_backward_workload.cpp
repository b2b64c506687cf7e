#include <fmt/format.h>

#include <optional>
#include <span>
#include <vector>

#include "kernels/measure/cuda/libraries/cudnn.hpp"
#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "kernels/measure/suites/attention_backward.hpp"
#include "sim/base/random.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

constexpr float query_scale = 4;  // as of the forward pass: scores of some units
constexpr int drawn_queries = 8;
constexpr int drawn_keys = 3;

// One head of `count` tokens in a row, [count, head_dim].
std::vector<double> head(const DeviceBuffer<std::uint16_t>& from, std::size_t width,
                         std::size_t dim, std::int64_t token, std::int64_t place,
                         std::int64_t count) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(count) * dim);
  const std::uint16_t* first =
      from.data() + static_cast<std::size_t>(token) * width + static_cast<std::size_t>(place) * dim;
  MOESIM_CUDA(cudaMemcpy2D(bits.data(), 2 * dim, first, 2 * width, 2 * dim,
                           static_cast<std::size_t>(count), cudaMemcpyDeviceToHost));
  std::vector<double> values;
  values.reserve(bits.size());
  for (const std::uint16_t each : bits) values.push_back(bf16_value(each));
  return values;
}

// The forward pass once, for the output and the statistics; then its backward pass is timed, and
// compared with fp64 gradients from the same output and statistics.
class AttentionBackward : public RotatedWorkload {
 public:
  AttentionBackward(Context& context, const PointSpec& spec, std::uint64_t seed)
      : RotatedWorkload(context, rotation(context, spec.bytes)),
        shape_(attention_shape(spec.params)),
        draws_({seed, Purpose::measurement, 7}),
        backward_(shape_, context.cudnn(), AttentionPass::backward),
        dim_(static_cast<std::size_t>(shape_.head_dim)),
        tokens_(static_cast<std::size_t>(shape_.batch * shape_.sequence)),
        query_width_(static_cast<std::size_t>(shape_.heads) * dim_),
        key_width_(static_cast<std::size_t>(shape_.kv_heads) * dim_),
        rows_(tokens_ * static_cast<std::size_t>(shape_.heads)),
        q_(copies_ * tokens_ * query_width_),
        k_(copies_ * tokens_ * key_width_),
        v_(k_.size()),
        out_(q_.size()),
        out_gradient_(q_.size()),
        q_gradient_(q_.size()),
        k_gradient_(k_.size()),
        v_gradient_(k_.size()),
        statistics_(copies_ * rows_),
        row_sums_(rows_),
        q_sums_(tokens_ * query_width_),
        workspace_(static_cast<std::size_t>(backward_.workspace_bytes())) {
    launch_random_bf16(q_.data(), q_.size(), seed, query_scale, stream());
    launch_random_bf16(k_.data(), k_.size(), seed + 1, 1, stream());
    launch_random_bf16(v_.data(), v_.size(), seed + 2, 1, stream());
    launch_random_bf16(out_gradient_.data(), out_gradient_.size(), seed + 3, 1, stream());
    CudnnAttention forward(shape_, context.cudnn(), AttentionPass::forward_for_backward);
    DeviceBuffer<std::uint8_t> room(static_cast<std::size_t>(forward.workspace_bytes()));
    for (std::size_t copy = 0; copy < copies_; ++copy) {
      const std::size_t query = copy * tokens_ * query_width_, key = copy * tokens_ * key_width_;
      forward.run(q_.data() + query, k_.data() + key, v_.data() + key, out_.data() + query,
                  room.data(), statistics_.data() + copy * rows_);
    }
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }

  Params details() override { return {{"library", "cuDNN " + backward_.version()}}; }

 protected:
  void launch(std::size_t copy) override {
    const std::size_t query = copy * tokens_ * query_width_, key = copy * tokens_ * key_width_;
    backward_.run_backward(
        {q_.data() + query, k_.data() + key, v_.data() + key, out_.data() + query,
         out_gradient_.data() + query, statistics_.data() + copy * rows_,
         q_gradient_.data() + query, k_gradient_.data() + key, v_gradient_.data() + key,
         row_sums_.data(), q_sums_.data()},
        workspace_.data());
  }
  void poison() override {
    for (const auto* each : {&q_gradient_, &k_gradient_, &v_gradient_}) {
      MOESIM_CUDA(cudaMemsetAsync(each->data(), 0xff, each->size() * 2, stream()));
    }
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }
  std::string check() override {
    // A mask that is off by one shows in the first queries and the last keys, which see few.
    std::vector<std::int64_t> queries{0, 1, shape_.sequence - 1};
    std::vector<std::int64_t> keys{0, shape_.sequence - 1};
    for (int each = 0; each < drawn_queries; ++each) queries.push_back(draw(shape_.sequence));
    for (int each = 0; each < drawn_keys; ++each) keys.push_back(draw(shape_.sequence));
    for (const std::int64_t row : queries) {
      std::string wrong = check_query(draw(shape_.batch), draw(shape_.heads), row);
      if (!wrong.empty()) return wrong;
    }
    for (const std::int64_t row : keys) {
      std::string wrong = check_key(draw(shape_.batch), draw(shape_.kv_heads), row);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

 private:
  // `count` queries of one head with what belongs to them.
  struct Queries {
    std::vector<double> query, out, out_gradient;
    std::vector<float> statistics;
    AttentionQuery at(std::size_t row, std::size_t dim) const {
      const auto of = [&](const std::vector<double>& values) {
        return std::span(values).subspan(row * dim, dim);
      };
      return {of(query), of(out), of(out_gradient), double{statistics[row]}};
    }
  };

  std::int64_t draw(std::int64_t below) {
    return static_cast<std::int64_t>(draws_.uniform() * static_cast<double>(below));
  }
  Queries queries(std::int64_t batch, std::int64_t place, std::int64_t row,
                  std::int64_t count) const {
    const std::int64_t token = batch * shape_.sequence + row;
    const auto of = [&](const DeviceBuffer<std::uint16_t>& from) {
      return head(from, query_width_, dim_, token, place, count);
    };
    const std::int64_t first = (batch * shape_.heads + place) * shape_.sequence + row;
    return {of(q_), of(out_), of(out_gradient_),
            download(statistics_.data() + first, static_cast<std::size_t>(count))};
  }
  std::vector<double> keys(const DeviceBuffer<std::uint16_t>& from, std::int64_t batch,
                           std::int64_t place, std::int64_t row, std::int64_t count) const {
    return head(from, key_width_, dim_, batch * shape_.sequence + row, place, count);
  }

  std::string check_query(std::int64_t batch, std::int64_t place, std::int64_t row) const {
    const std::int64_t group = place / (shape_.heads / shape_.kv_heads);
    const Queries one = queries(batch, place, row, 1);
    const AttentionRow wanted = attention_query_gradient(
        one.at(0, dim_), keys(k_, batch, group, 0, row + 1), keys(v_, batch, group, 0, row + 1));
    const std::vector<double> got =
        head(q_gradient_, query_width_, dim_, batch * shape_.sequence + row, place, 1);
    return compared("query", batch, place, row, got, wanted, query_gradient_roundings);
  }

  std::string check_key(std::int64_t batch, std::int64_t place, std::int64_t row) const {
    const std::vector<double> key = keys(k_, batch, place, row, 1);
    const std::vector<double> value = keys(v_, batch, place, row, 1);
    AttentionKeyGradients wanted(key, value);
    const std::int64_t share = shape_.heads / shape_.kv_heads;
    for (std::int64_t own = place * share; own < (place + 1) * share; ++own) {
      const std::int64_t count = shape_.sequence - row;
      const Queries later = queries(batch, own, row, count);
      for (std::int64_t at = 0; at < count; ++at) {
        wanted.add(later.at(static_cast<std::size_t>(at), dim_));
      }
    }
    const int roundings = key_gradient_roundings(shape_);
    std::string wrong = compared("key", batch, place, row, keys(k_gradient_, batch, place, row, 1),
                                 wanted.of_key(), roundings);
    if (!wrong.empty()) return wrong;
    return compared("value", batch, place, row, keys(v_gradient_, batch, place, row, 1),
                    wanted.of_value(), roundings);
  }

  static std::string compared(const char* what, std::int64_t batch, std::int64_t place,
                              std::int64_t row, const std::vector<double>& got,
                              const AttentionRow& wanted, int roundings) {
    const std::optional<std::size_t> at = wrong_element(got, wanted, roundings);
    if (!at) return "";
    return fmt::format(
        "gradient of a {}: sequence {}, head {}, token {}: element {} is {}, expected {}, of terms "
        "that add up to {}",
        what, batch, place, row, *at, got[*at], wanted.out[*at], wanted.size[*at]);
  }

  profile::AttentionShape shape_;
  ::moesim::Stream draws_;
  CudnnAttention backward_;
  std::size_t dim_, tokens_, query_width_, key_width_, rows_;
  DeviceBuffer<std::uint16_t> q_, k_, v_, out_, out_gradient_, q_gradient_, k_gradient_,
      v_gradient_;
  DeviceBuffer<float> statistics_, row_sums_, q_sums_;
  DeviceBuffer<std::uint8_t> workspace_;
};

}  // namespace

std::unique_ptr<Workload> attention_backward_workload(Context& context, const PointSpec& spec,
                                                      std::uint64_t seed) {
  return std::make_unique<AttentionBackward>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
