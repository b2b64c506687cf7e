#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "kernels/measure/suites/launch.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

// A stream that is held takes about a thousand launches.
constexpr std::size_t queued_calls = 256;
constexpr std::size_t graph_calls = 512;

// An empty kernel has no result: verified is that it runs.
class EmptyKernel : public RotatedWorkload {
 public:
  explicit EmptyKernel(Context& context) : RotatedWorkload(context, 1) {}

 protected:
  void launch(std::size_t) override { launch_empty(stream()); }
  void poison() override {}
  std::string check() override { return ""; }
};

// What one figure times; nothing is traced, as most of it is no kernel.
class TimedBeside : public Workload {
 public:
  TimedBeside(Context& context, std::string what) : context_(context), what_(std::move(what)) {}
  ~TimedBeside() override { context_.timer->forget(); }
  TimedBeside(const TimedBeside&) = delete;  // its graph ends with it
  TimedBeside& operator=(const TimedBeside&) = delete;

  std::string verify() override {
    cold();
    return "";
  }
  Run cold() override {
    return translated([this] {
      StreamTimer& timer = *context_.timer;
      const auto kernel = [&timer] { launch_empty(timer.stream()); };
      if (what_ == launch_queueing) return timer.queueing(queued_calls, kernel);
      return what_ == launch_and_wait ? timer.round_trip(kernel) : timer.cold([] {});
    });
  }
  double hot(std::size_t) override { throw NotMeasurable("it has no hot figure"); }
  bool has_hot() const override { return false; }
  std::string timer() const override {
    return what_ == launch_events ? "cuda-events" : "host-clock";
  }
  // What the kernel of a launch that is waited for takes by itself: an empty one in a graph.
  Params details() override {
    if (what_ != launch_and_wait) return Params::object();
    return translated([this]() -> Params {
      StreamTimer& timer = *context_.timer;
      const double time_us =
          timer.hot(graph_calls, [&timer](std::size_t) { launch_empty(timer.stream()); });
      return {{"kernel_us", time_us / static_cast<double>(graph_calls)}};
    });
  }

 private:
  Context& context_;
  std::string what_;
};

// Pinned memory of the host, in words.
class PinnedWords {
 public:
  explicit PinnedWords(std::size_t count) : count_(count) {
    MOESIM_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&words_), count * sizeof *words_,
                              cudaHostAllocDefault));
  }
  ~PinnedWords() { cudaFreeHost(words_); }
  PinnedWords(const PinnedWords&) = delete;  // it owns the memory
  PinnedWords& operator=(const PinnedWords&) = delete;
  std::uint32_t* data() const { return words_; }
  std::size_t size() const { return count_; }

 private:
  std::uint32_t* words_ = nullptr;
  std::size_t count_;
};

// The same two buffers each time.
class HostCopy : public RotatedWorkload {
 public:
  HostCopy(Context& context, const PointSpec& spec, std::uint64_t seed)
      : RotatedWorkload(context, 1),
        to_device_(spec.params.at("direction") == copy_to_device),
        salt_(static_cast<std::uint32_t>(seed)),
        host_(spec.params.at("bytes").get<std::size_t>() / sizeof(std::uint32_t)),
        device_(host_.size()),
        wrong_(1) {
    if (to_device_) {
      for (std::size_t at = 0; at < host_.size(); ++at)
        host_.data()[at] = pattern_word(own, salt_, at);
    } else {
      launch_pattern(device_.data(), device_.size(), own, salt_, stream());
    }
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }

 protected:
  void launch(std::size_t) override {
    const std::size_t bytes = host_.size() * sizeof(std::uint32_t);
    if (to_device_) {
      MOESIM_CUDA(
          cudaMemcpyAsync(device_.data(), host_.data(), bytes, cudaMemcpyHostToDevice, stream()));
    } else {
      MOESIM_CUDA(
          cudaMemcpyAsync(host_.data(), device_.data(), bytes, cudaMemcpyDeviceToHost, stream()));
    }
  }
  void poison() override {
    if (to_device_) return device_.fill(0xff);
    std::fill_n(host_.data(), host_.size(), ~std::uint32_t{0});
  }
  std::string check() override {
    unsigned long long wrong = 0;
    if (to_device_) {
      wrong_.fill(0);
      launch_compare_pattern(device_.data(), device_.size(), own, salt_, wrong_.data(), stream());
      MOESIM_CUDA(cudaStreamSynchronize(stream()));
      wrong = wrong_.download()[0];
    } else {
      for (std::size_t at = 0; at < host_.size(); ++at) {
        wrong += host_.data()[at] != pattern_word(own, salt_, at);
      }
    }
    return wrong == 0 ? "" : fmt::format("{} of {} words are wrong", wrong, host_.size());
  }

 private:
  static constexpr std::uint32_t own = 0x5a;
  bool to_device_;
  std::uint32_t salt_;
  PinnedWords host_;
  DeviceBuffer<std::uint32_t> device_;
  DeviceBuffer<unsigned long long> wrong_;
};

}  // namespace

std::unique_ptr<Workload> launch_workload(Context& context, const PointSpec& spec, std::uint64_t) {
  const std::string what = spec.params.at("what");
  if (what == launch_kernel) return std::make_unique<EmptyKernel>(context);
  return std::make_unique<TimedBeside>(context, what);
}

std::unique_ptr<Workload> host_copy_workload(Context& context, const PointSpec& spec,
                                             std::uint64_t seed) {
  return std::make_unique<HostCopy>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
