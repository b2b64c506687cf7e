#include <fmt/format.h>

#include <cmath>
#include <set>

#include "kernels/exchange/launch.hpp"
#include "kernels/measure/cuda/routed_tokens.hpp"
#include "kernels/measure/cuda/workloads.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

// permute: token rows into their experts' slots, the rest cleared; combine: back, weighted.
class Rows : public RotatedWorkload {
 public:
  Rows(Context& context, const PointSpec& spec, std::uint64_t seed)
      : RotatedWorkload(context, rotation(context, spec.bytes)),
        combines_(spec.op == "combine"),
        hidden_(spec.params.at("hidden")),
        routed_(spec, seed, stream()),
        tokens_(copies_ * count_tokens() * hidden_),
        rows_(copies_ * routed_.rows() * hidden_) {
    DeviceBuffer<std::uint16_t>& input = combines_ ? rows_ : tokens_;
    launch_random_bf16(input.data(), input.size(), seed + 1, 1, stream());
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
    const routing::RouterProblem& problem = routed_.problem();
    const routing::RouterBuffers& at = routed_.router().buffers();
    map_ = {problem.tokens,   problem.experts, problem.choices(), problem.capacity(),
            problem.stride(), at.expert,       at.slot,           at.kept_rows,
            nullptr};
  }

 protected:
  void launch(std::size_t copy) override {
    std::uint16_t* tokens = tokens_.data() + copy * count_tokens() * hidden_;
    std::uint16_t* rows = rows_.data() + copy * routed_.rows() * hidden_;
    const int vectors =
        exchange::row_vectors(static_cast<int>(hidden_), exchange::ElementType::bfloat16);
    if (!combines_) {
      exchange::launch_dispatch({map_, vectors, tokens, rows, nullptr}, stream());
      return;
    }
    exchange::CombineArguments in;
    in.map = map_;
    in.row_vectors = vectors;
    in.weight = routed_.router().buffers().weight;
    in.rows = rows;
    in.out = tokens;
    exchange::launch_combine(in, exchange::ElementType::bfloat16, stream());
  }
  void poison() override { (combines_ ? tokens_ : rows_).fill(0xff); }
  std::string check() override {
    routed_.download();
    const std::size_t last = count_tokens() - 1;
    for (const std::size_t token : std::set<std::size_t>{0, last / 3, last / 2, last}) {
      std::string wrong = combines_ ? check_combined(token) : check_permuted(token);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

 private:
  std::size_t count_tokens() const { return static_cast<std::size_t>(routed_.problem().tokens); }

  std::vector<std::uint16_t> row(const DeviceBuffer<std::uint16_t>& from, std::size_t at) const {
    return download(from.data() + at * hidden_, hidden_);
  }

  std::string check_permuted(std::size_t token) const {
    const auto expected = row(tokens_, token);
    for (int choice = 0; choice < routed_.problem().choices(); ++choice) {
      const std::int64_t at = routed_.row(token, choice);
      if (at >= 0 && row(rows_, static_cast<std::size_t>(at)) != expected) {
        return fmt::format("row {} is not token {}", at, token);
      }
    }
    return "";
  }

  std::string check_combined(std::size_t token) const {
    std::vector<double> expected(hidden_, 0), size(hidden_, 0);
    for (int choice = 0; choice < routed_.problem().choices(); ++choice) {
      const std::int64_t at = routed_.row(token, choice);
      if (at < 0) continue;
      const auto values = row(rows_, static_cast<std::size_t>(at));
      for (std::size_t column = 0; column < hidden_; ++column) {
        const double part =
            static_cast<double>(routed_.weight(token, choice)) * bf16_value(values[column]);
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

  bool combines_;
  std::size_t hidden_;
  RoutedTokens routed_;
  DeviceBuffer<std::uint16_t> tokens_, rows_;
  exchange::RouteMap map_;
};

}  // namespace

std::unique_ptr<Workload> row_workload(Context& context, const PointSpec& spec,
                                       std::uint64_t seed) {
  return std::make_unique<Rows>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
