#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>

#include "kernels/base/device_buffer.hpp"
#include "kernels/measure/cuda/device/device_kernels.hpp"
#include "kernels/measure/devices/device.hpp"

namespace moesim::kernels::measure::cuda {

// How the L2 is emptied before a run. A fill alone leaves it full of lines that are not yet in
// memory, up to 60 MB: the timed kernel then pays for writing them. Reading another buffer
// afterwards drives them out, so that the kernel finds lines that cost nothing to replace.
enum class Flush { fill, fill_and_read };

// Times work on one stream of the current device.
class StreamTimer {
 public:
  // `l2_bytes` and `sms` of the device.
  StreamTimer(std::int64_t l2_bytes, int sms, Flush flush = Flush::fill_and_read);
  ~StreamTimer();
  StreamTimer(const StreamTimer&) = delete;  // it owns a stream and events
  StreamTimer& operator=(const StreamTimer&) = delete;

  cudaStream_t stream() const { return stream_; }
  // The L2 flushed, the stream held until all is queued, events around the work, SM clocks read
  // around both. `before_release`, if given, is called when all is queued: ranks meet in it. If
  // that takes 2 s, the stream frees itself, and the run says that it was not held. `prelude`, if
  // given, is queued before the first event and not timed: an exchange, behind which ranks that
  // were released apart go on together.
  Run cold(const std::function<void()>& work, const std::function<void()>& before_release = {},
           const std::function<void()>& prelude = {});
  // The same for work that waits for the stream itself, which therefore cannot be held: what the
  // host takes to queue it counts where the device is faster. Ranks meet before the work.
  Run cold_unheld(const std::function<void()>& work, const std::function<void()>& before_work = {});
  // `calls` of `work` (told which one it is) queued back to back, the stream not held and the L2
  // not flushed, so that the device hardly rests between two of these: the time of one call, and
  // the mean clock. `meanwhile` is called when all is queued, while the device works.
  Run back_to_back(std::size_t calls, const std::function<void(std::size_t)>& work,
                   const std::function<void()>& meanwhile);
  // What the host takes, by its own clock, to queue each of `calls` of `work` on a stream that is
  // held meanwhile: the device gives nothing back until all are queued.
  Run queueing(std::size_t calls, const std::function<void()>& work);
  // `work` queued on an idle stream and waited for, by the host's clock.
  Run round_trip(const std::function<void()>& work);
  // One launch of a CUDA graph of `calls` calls of `work` (told which one it is), in microseconds.
  // The graph of the last `calls` is kept until forget(). Throws NotMeasurable if the host needs
  // more than 2 s to launch it, three times.
  double hot(std::size_t calls, const std::function<void(std::size_t)>& work);
  void forget();

 private:
  void flush();
  void hold();
  void release();
  bool held() const;  // until release(), the last time; the stream is idle
  double clock_mhz();
  double launch_graph();

  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
  std::uint32_t* flag_ = nullptr;  // mapped host memory: the ticket released, the last one expired
  std::uint32_t* device_flag_ = nullptr;  // the same, as the device sees it
  std::uint32_t ticket_ = 0;
  int sms_;
  DeviceBuffer<std::uint8_t> flushed_;
  DeviceBuffer<std::uint8_t> clean_;  // zeros, read after the fill; empty: not read
  DeviceBuffer<std::uint32_t> sink_;
  DeviceBuffer<SmClock> clocks_;  // [2, most_sms]: before and after
  cudaGraphExec_t graph_ = nullptr;
  std::size_t graph_calls_ = 0;
};

}  // namespace moesim::kernels::measure::cuda
