#include <fmt/format.h>

#include <cmath>

#include "kernels/exchange/launch.hpp"
#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/routed_tokens.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

// permute: token rows into their experts' slots, the rest cleared; combine: back, weighted; and
// what their backwards do: permute-backward sums rows unweighted, combine-backward makes the rows'
// gradients and the routes' upstreams.
class Rows : public RotatedWorkload {
 public:
  Rows(Context& context, const PointSpec& spec, std::uint64_t seed)
      : RotatedWorkload(context, rotation(context, spec.bytes)),
        op_(spec.op),
        hidden_(spec.params.at("hidden")),
        routed_(spec, seed, stream()),
        tokens_(copies_ * count_tokens() * hidden_),
        rows_(copies_ * routed_.rows() * hidden_) {
    const routing::RouterProblem& problem = routed_.problem();
    if (op_ == "combine-backward") {
      row_gradient_ = DeviceBuffer<std::uint16_t>(rows_.size());
      upstream_ = DeviceBuffer<float>(static_cast<std::size_t>(problem.stride()) *
                                      static_cast<std::size_t>(problem.choices()));
    }
    if (op_ != "permute") launch_random_bf16(rows_.data(), rows_.size(), seed + 1, 1, stream());
    if (op_ == "permute" || op_ == "combine-backward") {
      launch_random_bf16(tokens_.data(), tokens_.size(), seed + 2, 1, stream());
    }
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
    map_ = routed_.map();
  }

 protected:
  void launch(std::size_t copy) override {
    std::uint16_t* tokens = tokens_.data() + copy * count_tokens() * hidden_;
    std::uint16_t* rows = rows_.data() + copy * routed_.rows() * hidden_;
    constexpr auto type = exchange::ElementType::bfloat16;
    const int vectors = exchange::row_vectors(static_cast<int>(hidden_), type);
    const float* weight = routed_.router().buffers().weight;
    if (op_ == "permute") {
      exchange::launch_dispatch({map_, vectors, tokens, rows, nullptr}, stream());
    } else if (op_ == "combine-backward") {
      std::uint16_t* gradient = row_gradient_.data() + copy * routed_.rows() * hidden_;
      exchange::launch_combine_backward({map_, vectors, weight, nullptr, rows, nullptr, tokens,
                                         gradient, nullptr, upstream_.data(), nullptr},
                                        type, stream());
    } else {
      exchange::launch_combine({map_, vectors, op_ == "combine" ? weight : nullptr, nullptr, rows,
                                nullptr, nullptr, tokens},
                               type, stream());
    }
  }
  void poison() override {
    if (op_ == "combine-backward") {
      row_gradient_.fill(0xff);
      upstream_.fill(0xff);
    } else {
      (op_ == "permute" ? rows_ : tokens_).fill(0xff);
    }
  }
  std::string check() override {
    routed_.download();
    for (const std::size_t token : routed_.checked_tokens()) {
      std::string wrong = op_ == "permute"
                              ? routed_.check_permuted(tokens_.data(), rows_.data(), hidden_, token)
                          : op_ == "combine-backward" ? check_gradients(token)
                                                      : check_combined(token);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

 private:
  std::size_t count_tokens() const { return static_cast<std::size_t>(routed_.problem().tokens); }

  std::vector<std::uint16_t> row(const DeviceBuffer<std::uint16_t>& from, std::size_t at) const {
    return download(from.data() + at * hidden_, hidden_);
  }

  std::string check_combined(std::size_t token) const {
    std::vector<double> expected(hidden_, 0), size(hidden_, 0);
    for (int choice = 0; choice < routed_.problem().choices(); ++choice) {
      const std::int64_t at = routed_.row(token, choice);
      if (at < 0) continue;
      const auto values = row(rows_, static_cast<std::size_t>(at));
      const double weight =
          op_ == "combine" ? static_cast<double>(routed_.weight(token, choice)) : 1.0;
      for (std::size_t column = 0; column < hidden_; ++column) {
        const double part = weight * bf16_value(values[column]);
        expected[column] += part;
        size[column] += std::abs(part);
      }
    }
    const auto got = row(tokens_, token);
    for (std::size_t column = 0; column < hidden_; ++column) {
      if (!close(bf16_value(got[column]), expected[column], size[column] * 0x1p-20)) {
        return fmt::format("element [{}, {}] is {}, expected {}", token, column,
                           bf16_value(got[column]), expected[column]);
      }
    }
    return "";
  }

  std::string check_gradients(std::size_t token) const {
    const auto gradient = row(tokens_, token);
    for (int choice = 0; choice < routed_.problem().choices(); ++choice) {
      const std::int64_t at = routed_.row(token, choice);
      if (at < 0) continue;
      const auto values = row(rows_, static_cast<std::size_t>(at));
      const auto got = row(row_gradient_, static_cast<std::size_t>(at));
      const double weight = static_cast<double>(routed_.weight(token, choice));
      double product = 0, size = 0;
      for (std::size_t column = 0; column < hidden_; ++column) {
        const double d = bf16_value(gradient[column]);
        product += d * bf16_value(values[column]);
        size += std::abs(d * bf16_value(values[column]));
        if (!close(bf16_value(got[column]), weight * d, 0)) {
          return fmt::format("gradient [{}, {}] is {}, expected {}", at, column,
                             bf16_value(got[column]), weight * d);
        }
      }
      const auto place = static_cast<std::size_t>(choice * routed_.problem().stride()) + token;
      const auto upstream = static_cast<double>(download(upstream_.data() + place, 1).front());
      if (!(std::abs(upstream - product) <= size * 0x1p-18)) {
        return fmt::format("the upstream of token {} choice {} is {}, expected {}", token, choice,
                           upstream, product);
      }
    }
    return "";
  }

  std::string op_;
  std::size_t hidden_;
  RoutedTokens routed_;
  DeviceBuffer<std::uint16_t> tokens_, rows_, row_gradient_;
  DeviceBuffer<float> upstream_;
  exchange::RouteMap map_;
};

}  // namespace

std::unique_ptr<Workload> row_workload(Context& context, const PointSpec& spec,
                                       std::uint64_t seed) {
  return std::make_unique<Rows>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
