#include <fmt/format.h>

#include <cmath>

#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/routed_tokens.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "sim/base/random.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

constexpr int checked_logits = 64;

// From logits to slots and weights; with `gated` from x and the router's weights, bf16: all of it,
// or the gate with its choices alone (param "alone"); "cublas": its product by the library, its
// choices from the logits in a launch of their own.
class Route : public RotatedWorkload {
 public:
  Route(Context& context, const PointSpec& spec, bool gated, std::uint64_t seed)
      : RotatedWorkload(context, gated ? rotation(context, spec.bytes) : 1),
        tokens_(spec, seed, stream()),
        seed_(seed),
        gated_(gated),
        alone_(spec.params.value("alone", false)),
        cublas_(spec.params.value("cublas", false)) {
    if (!gated) return;
    hidden_ = spec.params.at("hidden");
    const auto width = static_cast<std::size_t>(hidden_);
    x_ = DeviceBuffer<std::uint16_t>(copies_ * static_cast<std::size_t>(tokens_.problem().tokens) *
                                     width);
    w_ = DeviceBuffer<std::uint16_t>(static_cast<std::size_t>(tokens_.problem().experts) * width);
    logits_ = DeviceBuffer<float>(static_cast<std::size_t>(tokens_.problem().tokens) *
                                  static_cast<std::size_t>(tokens_.problem().experts));
    launch_random_bf16(x_.data(), x_.size(), seed + 1, 1, stream());
    launch_random_bf16(w_.data(), w_.size(), seed + 2, 0.05F, stream());
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }

 protected:
  void launch(std::size_t copy) override {
    if (!gated_) return tokens_.router().route(tokens_.logits(), stream());
    const std::size_t size = x_.size() / copies_;
    const std::uint16_t* x = x_.data() + copy * size;
    const routing::DeviceRouter& router = tokens_.router();
    if (!alone_) {
      router.gate_and_route(x, w_.data(), hidden_, true, logits_.data(), stream());
      return;
    }
    if (cublas_) {
      const routing::RouterProblem& problem = tokens_.problem();
      run_gemm(context_.cublas(),
               {problem.tokens, problem.experts, hidden_, false, true, false, true}, x, w_.data(),
               logits_.data());
      routing::launch_choose(choose_arguments(problem, router.buffers(), logits_.data()), stream());
      return;
    }
    routing::launch_gate({x, w_.data(), hidden_, logits_.data(),
                          choose_arguments(tokens_.problem(), router.buffers(), logits_.data())},
                         true, stream());
  }
  void poison() override {
    if (gated_) logits_.fill(0xff);
    tokens_.poison(stream());
  }
  std::string check() override {
    if (alone_) {
      tokens_.router().assign(stream());
      MOESIM_CUDA(cudaStreamSynchronize(stream()));
    }
    const std::size_t count = static_cast<std::size_t>(tokens_.problem().tokens) *
                              static_cast<std::size_t>(tokens_.problem().experts);
    // The rule of equality holds from fp32 logits on: those of the device are the input.
    const std::vector<float> logits = download(gated_ ? logits_.data() : tokens_.logits(), count);
    const std::string wrong = gated_ ? check_logits(logits) : "";
    return wrong.empty() ? tokens_.check(logits) : wrong;
  }

 private:
  std::string check_logits(const std::vector<float>& logits) const {
    const auto width = static_cast<std::size_t>(hidden_);
    const auto experts = static_cast<std::size_t>(tokens_.problem().experts);
    ::moesim::Stream draws({seed_, Purpose::measurement, 2});
    for (int each = 0; each < checked_logits; ++each) {
      const auto place =
          static_cast<std::size_t>(draws.uniform() * static_cast<double>(logits.size()));
      const auto x = download(x_.data() + place / experts * width, width);
      const auto w = download(w_.data() + place % experts * width, width);
      double sum = 0, size = 0;
      for (std::size_t at = 0; at < width; ++at) {
        sum += bf16_value(x[at]) * bf16_value(w[at]);
        size += std::abs(bf16_value(x[at]) * bf16_value(w[at]));
      }
      if (!(std::abs(static_cast<double>(logits[place]) - sum) <= size * 0x1p-18)) {
        return fmt::format("logit [{}, {}] is {}, expected {}", place / experts, place % experts,
                           logits[place], sum);
      }
    }
    return "";
  }

  RoutedTokens tokens_;
  std::uint64_t seed_;
  bool gated_;
  bool alone_;
  bool cublas_;
  int hidden_ = 0;
  DeviceBuffer<std::uint16_t> x_, w_;
  DeviceBuffer<float> logits_;
};

}  // namespace

std::unique_ptr<Workload> routing_workload(Context& context, const PointSpec& spec,
                                           std::uint64_t seed) {
  return std::make_unique<Route>(context, spec, spec.op == "gate", seed);
}

}  // namespace moesim::kernels::measure::cuda
