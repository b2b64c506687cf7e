#include <fmt/format.h>

#include <cmath>

#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/routed_tokens.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "sim/base/random.hpp"
#include "sim/routing/tokens/gradient.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

// One launch of a routing alone: softmax and top-k' ("choose") or the capacity ("assign"). The
// launches before it make its input, those behind it make its result comparable.
class RouterStage : public RotatedWorkload {
 public:
  RouterStage(Context& context, const PointSpec& spec, std::uint64_t seed)
      : RotatedWorkload(context, 1), assigns_(spec.op == "assign"), tokens_(spec, seed, stream()) {}

 protected:
  void launch(std::size_t) override {
    if (assigns_) {
      routing::launch_assign(assign_arguments(tokens_.problem(), tokens_.router().buffers()),
                             stream());
    } else {
      choose();
    }
  }
  void poison() override {
    tokens_.poison(stream());
    if (assigns_) choose();
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }
  std::string check() override {
    const routing::RouterProblem& problem = tokens_.problem();
    const routing::RouterBuffers& buffers = tokens_.router().buffers();
    if (!assigns_) routing::launch_assign(assign_arguments(problem, buffers), stream());
    routing::launch_weigh(weigh_arguments(problem, buffers), stream());
    if (problem.rectified()) routing::launch_collect(collect_arguments(problem, buffers), stream());
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
    return tokens_.check(download(tokens_.logits(), logits_of(problem)));
  }

 private:
  static std::size_t logits_of(const routing::RouterProblem& problem) {
    return static_cast<std::size_t>(problem.tokens) * static_cast<std::size_t>(problem.experts);
  }
  void choose() {
    routing::launch_choose(
        choose_arguments(tokens_.problem(), tokens_.router().buffers(), tokens_.logits()),
        stream());
  }

  bool assigns_;
  RoutedTokens tokens_;
};

// The router's backward, the normaliser a constant; routers without IR.
class RouterBackward : public RotatedWorkload {
 public:
  RouterBackward(Context& context, const PointSpec& spec, std::uint64_t seed)
      : RotatedWorkload(context, 1), tokens_(spec, seed, stream()), seed_(seed) {
    const routing::RouterProblem& problem = tokens_.problem();
    if (problem.rectified()) throw NotMeasurable("the backward is timed for routers without IR");
    upstream_ = DeviceBuffer<float>(static_cast<std::size_t>(problem.stride()) *
                                    static_cast<std::size_t>(problem.choices()));
    gradient_ = DeviceBuffer<float>(static_cast<std::size_t>(problem.tokens) *
                                    static_cast<std::size_t>(problem.experts));
    launch_random_floats(upstream_.data(), upstream_.size(), seed + 3, stream());
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }

 protected:
  void launch(std::size_t) override {
    tokens_.router().backward(tokens_.logits(), upstream_.data(), nullptr,
                              routing::NormaliserRule::straight_through, gradient_.data(),
                              stream());
  }
  void poison() override {
    gradient_.fill(0xff);
    MOESIM_CUDA(cudaDeviceSynchronize());
  }
  std::string check() override {
    tokens_.download();
    ::moesim::Stream draws({seed_, Purpose::measurement, 3});
    constexpr int checked_tokens = 64;
    for (int each = 0; each < checked_tokens; ++each) {
      const auto token =
          static_cast<std::size_t>(draws.uniform() * static_cast<double>(tokens_.problem().tokens));
      std::string wrong = check_token(token);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

 private:
  std::string check_token(std::size_t token) const {
    const routing::RouterProblem& problem = tokens_.problem();
    const auto experts = static_cast<std::size_t>(problem.experts);
    std::vector<double> g;
    double sum = 0;
    for (const float logit : cuda::download(tokens_.logits() + token * experts, experts)) {
      g.push_back(std::exp(static_cast<double>(logit)));
      sum += g.back();
    }
    for (double& value : g) value /= sum;
    std::vector<::moesim::routing::ProcessedRow> rows;
    for (int choice = 0; choice < problem.choices(); ++choice) {
      const std::int64_t row = tokens_.row(token, choice);
      if (row < 0) continue;
      const auto expert = static_cast<int>(row / problem.capacity());
      const auto place = static_cast<std::size_t>(choice * problem.stride()) + token;
      rows.push_back({expert, g[static_cast<std::size_t>(expert)],
                      static_cast<double>(cuda::download(upstream_.data() + place, 1).front())});
    }
    const std::vector<double> wanted =
        ::moesim::routing::logit_gradient(g, rows, ::moesim::routing::Normaliser::straight_through);
    const auto got = cuda::download(gradient_.data() + token * experts, experts);
    for (std::size_t expert = 0; expert < experts; ++expert) {
      // Sums of a few products with relative errors of 1e-6 (tests/gpu has the same bound for
      // upstreams below 1, as these are).
      if (!(std::abs(static_cast<double>(got[expert]) - wanted[expert]) <= 4e-6)) {
        return fmt::format("the gradient of logit [{}, {}] is {}, expected {}", token, expert,
                           got[expert], wanted[expert]);
      }
    }
    return "";
  }

  RoutedTokens tokens_;
  std::uint64_t seed_;
  DeviceBuffer<float> upstream_, gradient_;
};

}  // namespace

std::unique_ptr<Workload> stage_workload(Context& context, const PointSpec& spec,
                                         std::uint64_t seed) {
  if (spec.op == "router-backward") return std::make_unique<RouterBackward>(context, spec, seed);
  return std::make_unique<RouterStage>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
