#include "kernels/measure/cuda/device/stream_timer.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

#include "sim/base/statistics.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

constexpr std::uint64_t hold_patience_ns = 2'000'000'000;  // then the stream frees itself

double host_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

}  // namespace

StreamTimer::StreamTimer(std::int64_t l2_bytes, int sms, Flush flush)
    : sms_(sms),
      // Twice the L2: what was in it is gone even if replacement is not least-recently-used.
      flushed_(static_cast<std::size_t>(std::max<std::int64_t>(2 * l2_bytes, 1 << 20))),
      clean_(flush == Flush::fill_and_read ? flushed_.size() : 0),
      sink_(1),
      clocks_(std::size_t{2} * most_sms) {
  if (clean_.size() > 0) clean_.fill(0);
  MOESIM_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  MOESIM_CUDA(cudaEventCreate(&start_));
  MOESIM_CUDA(cudaEventCreate(&stop_));
  MOESIM_CUDA(
      cudaHostAlloc(reinterpret_cast<void**>(&flag_), 2 * sizeof *flag_, cudaHostAllocMapped));
  flag_[0] = flag_[1] = 0;
  MOESIM_CUDA(cudaHostGetDevicePointer(reinterpret_cast<void**>(&device_flag_), flag_, 0));
}

StreamTimer::~StreamTimer() {
  forget();
  cudaFreeHost(flag_);
  cudaEventDestroy(stop_);
  cudaEventDestroy(start_);
  cudaStreamDestroy(stream_);
}

void StreamTimer::forget() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  graph_ = nullptr;
  graph_calls_ = 0;
}

void StreamTimer::flush() {
  MOESIM_CUDA(cudaMemsetAsync(flushed_.data(), static_cast<int>(ticket_ & 0xffU), flushed_.size(),
                              stream_));
  if (clean_.size() > 0) launch_read(clean_.data(), clean_.size(), sink_.data(), stream_);
}

void StreamTimer::hold() {
  launch_hold(device_flag_, ++ticket_, hold_patience_ns, device_flag_ + 1, stream_);
}

void StreamTimer::release() { *static_cast<volatile std::uint32_t*>(flag_) = ticket_; }

bool StreamTimer::held() const {
  return static_cast<const volatile std::uint32_t*>(flag_)[1] != ticket_;
}

Run StreamTimer::cold(const std::function<void()>& work,
                      const std::function<void()>& before_release,
                      const std::function<void()>& prelude) {
  MOESIM_CUDA(cudaMemsetAsync(clocks_.data(), 0, clocks_.size() * sizeof(SmClock), stream_));
  launch_clocks(clocks_.data(), sms_, stream_);
  flush();
  hold();
  try {
    if (prelude) prelude();
    MOESIM_CUDA(cudaEventRecord(start_, stream_));
    work();
    MOESIM_CUDA(cudaEventRecord(stop_, stream_));
    launch_clocks(clocks_.data() + most_sms, sms_, stream_);
    if (before_release) before_release();
  } catch (...) {
    release();
    throw;
  }
  release();
  MOESIM_CUDA(cudaStreamSynchronize(stream_));
  float milliseconds = 0;
  MOESIM_CUDA(cudaEventElapsedTime(&milliseconds, start_, stop_));
  return {1e3 * static_cast<double>(milliseconds), clock_mhz(), 1, held()};
}

Run StreamTimer::cold_unheld(const std::function<void()>& work,
                             const std::function<void()>& before_work) {
  MOESIM_CUDA(cudaMemsetAsync(clocks_.data(), 0, clocks_.size() * sizeof(SmClock), stream_));
  launch_clocks(clocks_.data(), sms_, stream_);
  flush();
  if (before_work) before_work();
  MOESIM_CUDA(cudaEventRecord(start_, stream_));
  work();
  MOESIM_CUDA(cudaEventRecord(stop_, stream_));
  launch_clocks(clocks_.data() + most_sms, sms_, stream_);
  MOESIM_CUDA(cudaStreamSynchronize(stream_));
  float milliseconds = 0;
  MOESIM_CUDA(cudaEventElapsedTime(&milliseconds, start_, stop_));
  return {1e3 * static_cast<double>(milliseconds), clock_mhz()};
}

Run StreamTimer::back_to_back(std::size_t calls, const std::function<void(std::size_t)>& work,
                              const std::function<void()>& meanwhile) {
  MOESIM_CUDA(cudaMemsetAsync(clocks_.data(), 0, clocks_.size() * sizeof(SmClock), stream_));
  launch_clocks(clocks_.data(), sms_, stream_);
  MOESIM_CUDA(cudaEventRecord(start_, stream_));
  for (std::size_t call = 0; call < calls; ++call) work(call);
  MOESIM_CUDA(cudaEventRecord(stop_, stream_));
  launch_clocks(clocks_.data() + most_sms, sms_, stream_);
  meanwhile();
  MOESIM_CUDA(cudaStreamSynchronize(stream_));
  float milliseconds = 0;
  MOESIM_CUDA(cudaEventElapsedTime(&milliseconds, start_, stop_));
  return {1e3 * static_cast<double>(milliseconds) / static_cast<double>(calls), clock_mhz(), calls};
}

Run StreamTimer::queueing(std::size_t calls, const std::function<void()>& work) {
  hold();
  double time_us = 0;
  try {
    const double start_us = host_us();
    for (std::size_t call = 0; call < calls; ++call) work();
    time_us = host_us() - start_us;
  } catch (...) {
    release();
    throw;
  }
  release();
  MOESIM_CUDA(cudaStreamSynchronize(stream_));
  return {time_us / static_cast<double>(calls), 0, calls, held()};
}

Run StreamTimer::round_trip(const std::function<void()>& work) {
  MOESIM_CUDA(cudaStreamSynchronize(stream_));
  const double start_us = host_us();
  work();
  MOESIM_CUDA(cudaStreamSynchronize(stream_));
  return {host_us() - start_us, 0};
}

double StreamTimer::clock_mhz() {
  std::vector<SmClock> read(std::size_t{2} * most_sms);
  MOESIM_CUDA(cudaMemcpy(read.data(), clocks_.data(), read.size() * sizeof(SmClock),
                         cudaMemcpyDeviceToHost));
  std::vector<double> each;
  for (std::size_t sm = 0; sm < most_sms; ++sm) {
    const SmClock& before = read[sm];
    const SmClock& after = read[sm + most_sms];
    if (before.nanoseconds == 0 || after.nanoseconds <= before.nanoseconds) continue;
    each.push_back(1e3 * static_cast<double>(after.cycles - before.cycles) /
                   static_cast<double>(after.nanoseconds - before.nanoseconds));
  }
  return each.empty() ? 0 : median(each);
}

double StreamTimer::hot(std::size_t calls, const std::function<void(std::size_t)>& work) {
  if (graph_ == nullptr || graph_calls_ != calls) {
    forget();
    cudaGraph_t captured = nullptr;
    MOESIM_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    try {
      for (std::size_t call = 0; call < calls; ++call) work(call);
    } catch (...) {
      worked(cudaStreamEndCapture(stream_, &captured));  // not, where the work broke the capture
      if (captured != nullptr) cudaGraphDestroy(captured);
      throw;
    }
    MOESIM_CUDA(cudaStreamEndCapture(stream_, &captured));
    const cudaError_t built = cudaGraphInstantiate(&graph_, captured, 0);
    cudaGraphDestroy(captured);
    check_cuda(built, "cudaGraphInstantiate");
    // Else the first launch does it, while the stream is held.
    MOESIM_CUDA(cudaGraphUpload(graph_, stream_));
    MOESIM_CUDA(cudaStreamSynchronize(stream_));
    graph_calls_ = calls;
  }
  constexpr int tries = 3;
  for (int once = 0; once < tries; ++once) {
    const double time_us = launch_graph();
    if (held()) return time_us;
  }
  throw NotMeasurable("the host takes longer than 2 s to launch a graph: is the machine busy?");
}

double StreamTimer::launch_graph() {
  hold();
  MOESIM_CUDA(cudaEventRecord(start_, stream_));
  MOESIM_CUDA(cudaGraphLaunch(graph_, stream_));
  MOESIM_CUDA(cudaEventRecord(stop_, stream_));
  release();
  MOESIM_CUDA(cudaStreamSynchronize(stream_));
  float milliseconds = 0;
  MOESIM_CUDA(cudaEventElapsedTime(&milliseconds, start_, stop_));
  return 1e3 * static_cast<double>(milliseconds);
}

}  // namespace moesim::kernels::measure::cuda
