#include "kernels/exchange/launch.hpp"
#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/routed_tokens.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

// All that is between the tokens and their experts' rows on one GPU, in three launches: the gate
// with its choices, the capacity, and weights and permute together.
class Dispatch : public RotatedWorkload {
 public:
  Dispatch(Context& context, const PointSpec& spec, std::uint64_t seed)
      : RotatedWorkload(context, rotation(context, spec.bytes)),
        hidden_(spec.params.at("hidden")),
        routed_(spec, seed, stream()),
        x_(copies_ * count_tokens() * width()),
        w_(static_cast<std::size_t>(routed_.problem().experts) * width()),
        logits_(count_tokens() * static_cast<std::size_t>(routed_.problem().experts)),
        rows_(copies_ * routed_.rows() * width()) {
    if (routed_.problem().rectified())
      throw NotMeasurable("IR rows are known only behind the weights");
    launch_random_bf16(x_.data(), x_.size(), seed + 1, 1, stream());
    launch_random_bf16(w_.data(), w_.size(), seed + 2, 0.05F, stream());
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }

 protected:
  void launch(std::size_t copy) override {
    const std::uint16_t* x = x_.data() + copy * count_tokens() * width();
    std::uint16_t* rows = rows_.data() + copy * routed_.rows() * width();
    const routing::DeviceRouter& router = routed_.router();
    router.gate_and_assign(x, w_.data(), hidden_, true, logits_.data(), stream());
    const int vectors = exchange::row_vectors(hidden_, exchange::ElementType::bfloat16);
    exchange::launch_weigh_and_dispatch(weigh_arguments(routed_.problem(), router.buffers()),
                                        {routed_.map(), vectors, x, rows, nullptr}, stream());
  }
  void poison() override {
    logits_.fill(0xff);
    rows_.fill(0xff);
    routed_.poison(stream());
  }
  std::string check() override {
    // The rule of equality holds from fp32 logits on: those of the device are the input.
    std::string wrong = routed_.check(download(logits_.data(), logits_.size()));
    for (const std::size_t token : routed_.checked_tokens()) {
      if (wrong.empty()) wrong = routed_.check_permuted(x_.data(), rows_.data(), width(), token);
    }
    return wrong;
  }

 private:
  std::size_t count_tokens() const { return static_cast<std::size_t>(routed_.problem().tokens); }
  std::size_t width() const { return static_cast<std::size_t>(hidden_); }

  int hidden_;
  RoutedTokens routed_;
  DeviceBuffer<std::uint16_t> x_, w_;
  DeviceBuffer<float> logits_;
  DeviceBuffer<std::uint16_t> rows_;
};

}  // namespace

std::unique_ptr<Workload> dispatch_workload(Context& context, const PointSpec& spec,
                                            std::uint64_t seed) {
  return std::make_unique<Dispatch>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
