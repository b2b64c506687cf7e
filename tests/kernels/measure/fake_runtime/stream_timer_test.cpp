// The timer's calls of the CUDA runtime, on a stand-in for it.
#include "kernels/measure/cuda/device/stream_timer.hpp"

#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/support/catch.hpp"
#include "tests/support/fake_cuda/runtime.hpp"

namespace measure = moesim::kernels::measure;
using measure::cuda::StreamTimer;

namespace {

const auto nothing = [](std::size_t) {};

}  // namespace

TEST_CASE("a graph is on the device before the stream is first held for it, and stays there") {
  fake_runtime() = {};
  StreamTimer timer(1 << 20, 1);
  CHECK(timer.hot(2, nothing) == 1000);
  const std::vector<std::string> launch = {"hold", "event", "graph", "event", "synchronise"};
  std::vector<std::string> first = {"capture", "upload", "synchronise"};
  first.insert(first.end(), launch.begin(), launch.end());
  CHECK(fake_runtime().calls == first);
  fake_runtime().calls.clear();
  timer.hot(2, nothing);
  CHECK(fake_runtime().calls == launch);
}

TEST_CASE("a prelude is queued behind the hold and before the first event: it is not timed") {
  fake_runtime() = {};
  StreamTimer timer(1 << 20, 1);
  fake_runtime().calls.clear();
  const auto say = [](const char* what) {
    return [what] { fake_runtime().calls.emplace_back(what); };
  };
  timer.cold(say("work"), say("meeting"), say("prelude"));
  CHECK(fake_runtime().calls == std::vector<std::string>{"clocks", "read", "hold", "prelude",
                                                         "event", "work", "event", "clocks",
                                                         "meeting", "synchronise"});
  // One that fails leaves no stream held.
  CHECK_THROWS_WITH(timer.cold([] {}, {}, [] { throw std::runtime_error("refused"); }), "refused");
  CHECK(timer.cold([] {}).held);
}

TEST_CASE("calls back to back share their time, and the device works meanwhile") {
  fake_runtime() = {};
  StreamTimer timer(1 << 20, 1);
  fake_runtime().calls.clear();
  std::vector<std::size_t> called;
  const measure::Run run = timer.back_to_back(
      4, [&called](std::size_t call) { called.push_back(call); },
      [] { fake_runtime().calls.emplace_back("meanwhile"); });
  CHECK(called == std::vector<std::size_t>{0, 1, 2, 3});
  CHECK(run.time_us == 250);
  CHECK(run.calls == 4);
  // Neither held nor flushed.
  CHECK(fake_runtime().calls ==
        std::vector<std::string>{"clocks", "event", "event", "clocks", "meanwhile", "synchronise"});
}

TEST_CASE(
    "the host's own time of launches is taken while the stream is held, or until it is idle") {
  fake_runtime() = {};
  StreamTimer timer(1 << 20, 1);
  fake_runtime().calls.clear();
  const auto work = [] {
    fake_runtime().calls.emplace_back("work");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  const measure::Run queued = timer.queueing(3, work);
  CHECK(queued.calls == 3);
  CHECK(queued.time_us >= 2000);
  CHECK(queued.clock_mhz == 0);
  CHECK(queued.held);
  CHECK(fake_runtime().calls ==
        std::vector<std::string>{"hold", "work", "work", "work", "synchronise"});
  fake_runtime().calls.clear();
  CHECK(timer.round_trip(work).time_us >= 2000);
  CHECK(fake_runtime().calls == std::vector<std::string>{"synchronise", "work", "synchronise"});
  fake_runtime().impatient = true;
  CHECK_FALSE(timer.queueing(1, work).held);
  // Work that fails leaves no stream held.
  fake_runtime().impatient = false;
  CHECK_THROWS_AS(timer.queueing(1, [] { throw std::runtime_error("refused"); }),
                  std::runtime_error);
  CHECK(timer.cold([] {}).held);
}

TEST_CASE("a host that is too slow three times leaves the point unmeasured, not the session") {
  fake_runtime() = {};
  StreamTimer timer(1 << 20, 1);
  fake_runtime().impatient = true;
  CHECK_FALSE(timer.cold([] {}).held);
  CHECK_THROWS_AS(timer.hot(1, nothing), measure::NotMeasurable);
  fake_runtime().impatient = false;
  CHECK(timer.cold([] {}).held);
  CHECK(timer.hot(1, nothing) > 0);
}

TEST_CASE("work that breaks its capture leaves no error for the next launch's check to find") {
  fake_runtime() = {};
  StreamTimer timer(1 << 20, 1);
  fake_runtime().end_capture = cudaErrorStreamCaptureInvalidated;
  CHECK_THROWS_WITH(timer.hot(1, [](std::size_t) { throw std::runtime_error("not in a graph"); }),
                    "not in a graph");
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("a call that fails is reported once, or taken as an answer") {
  fake_runtime() = {};
  fake_runtime().malloc = cudaErrorMemoryAllocation;
  CHECK_THROWS_AS(moesim::kernels::DeviceBuffer<int>(1), moesim::kernels::CudaError);
  CHECK(cudaGetLastError() == cudaSuccess);
  int value = 0;
  CHECK_FALSE(moesim::kernels::worked(cudaDeviceGetAttribute(&value, cudaDevAttrClockRate, 0)));
  CHECK(cudaGetLastError() == cudaSuccess);
}
