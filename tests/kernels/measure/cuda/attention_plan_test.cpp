// Attention as cuDNN itself takes it, planned and compiled for GPUs that are not here.
#ifdef MOESIM_FAKE_CUDNN
#include <dlfcn.h>
#include <fmt/format.h>
#include <cstdlib>

#include <vector>

#include "kernels/measure/cuda/libraries/attention_graph.hpp"
#include "kernels/measure/suites/attention.hpp"
#include "kernels/measure/suites/suites.hpp"
#include "sim/base/error.hpp"
#include "tests/kernels/measure/cuda/in_process.hpp"
#include "tests/support/catch.hpp"

namespace cuda = moesim::kernels::measure::cuda;

namespace {

struct Gpu {
  const char* name;
  int version;  // 900: compute capability 9.0
  int sms;
  int clock_khz, memory_clock_khz;
  int l2_bytes;
  int shared_bytes;  // most of a block, by choice
  double memory_bytes;
};
// Figures of their data sheets and of the CUDA programming guide's table of compute capabilities.
constexpr Gpu a100{"NVIDIA A100-SXM4-80GB", 800, 108, 1410000, 1593000, 41943040, 166912, 85e9};
constexpr Gpu h100{"NVIDIA H100 80GB HBM3", 900, 132, 1980000, 2619000, 52428800, 232448, 85e9};
constexpr Gpu b200{"NVIDIA B200", 1000, 148, 1965000, 3996000, 132644864, 232448, 191e9};

std::string described(const Gpu& gpu) {
  return fmt::format(
      R"({{"deviceName":"{}","deviceVer":{},"driverVer":13000,"cudaDeviceId":0,)"
      R"("multiProcessorCount":{},"smClockRateKHz":{},"memClockRateKHz":{},"l2CacheSize":{},)"
      R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},)"
      R"("reservedSharedMemoryPerBlock":1024,"totalGlobalMem":{:.0f},)"
      R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
      R"("regsPerBlock":65536,"maxRegistersPerSM":65536,"warpSize":32,"maxCtasPerSM":32,)"
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)"
      R"("supportCoopLaunch":1}})",
      gpu.name, gpu.version, gpu.sms, gpu.clock_khz, gpu.memory_clock_khz, gpu.l2_bytes,
      gpu.shared_bytes, gpu.memory_bytes);
}

// cuDNN loads what it has compiled into a driver: where there is none, a stand-in takes it.
void need_driver() {
  if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  if (::dlopen(MOESIM_FAKE_LOADER, RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  throw moesim::Error(::dlerror());
}

void plan(const moesim::profile::AttentionShape& shape, const std::string& device,
          cuda::AttentionPass pass = cuda::AttentionPass::forward) {
  const cuda::CudnnTarget target(device);
  const cuda::AttentionGraph operations(shape, pass);
  const cuda::CudnnDescriptor graph = operations.finished(target);
  cuda::first_plan(graph, target);
}

// "planned" or what is thrown, by the cuDNN of this machine.
std::string planned(const moesim::profile::AttentionShape& shape, const std::string& device,
                    cuda::AttentionPass pass = cuda::AttentionPass::forward) {
  return in_process("MOESIM_CUDNN_LIBRARY", "", [&] {
    need_driver();
    plan(shape, device, pass);
    return std::string("planned");
  });
}

// Skips where there is no cuDNN that plans without a device.
void need_cudnn() {
  const std::string said = in_process("MOESIM_CUDNN_LIBRARY", "", [] {
    const cuda::CudnnTarget target(described(h100));
    return std::string();
  });
  if (!said.empty()) MOESIM_SKIP(said);
}

}  // namespace

TEST_CASE("cuDNN plans the attention of every head size for A100, H100 and B200") {
  need_cudnn();
  for (const Gpu& gpu : {a100, h100, b200}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      CAPTURE(gpu.name, head_dim);
      // 32 query heads in groups of 4, and as many key heads as query heads.
      CHECK(planned({4, 1024, 32, 8, head_dim}, described(gpu)) == "planned");
    }
  }
}

TEST_CASE("cuDNN plans the backward pass, and the forward pass before it, for an H100") {
  need_cudnn();
  for (const auto pass :
       {cuda::AttentionPass::forward_for_backward, cuda::AttentionPass::backward}) {
    CHECK(planned({1, 512, 32, 32, 128}, described(h100), pass) == "planned");
    CHECK(planned({4, 4096, 32, 8, 128}, described(h100), pass) == "planned");
    CHECK(planned({1, 16384, 64, 8, 64}, described(h100), pass) == "planned");
    CHECK(planned({1, 4096, 16, 4, 256}, described(h100), pass) == "planned");
  }
}

TEST_CASE("cuDNN plans short, long and ungrouped attention for an H100") {
  need_cudnn();
  CHECK(planned({32, 128, 32, 8, 128}, described(h100)) == "planned");
  CHECK(planned({1, 16384, 32, 8, 128}, described(h100)) == "planned");
  CHECK(planned({4, 1024, 16, 16, 128}, described(h100)) == "planned");
}

namespace {

// What cuDNN refuses of each `step`-th point of the suite. It takes 0.5 to 0.7 s for one.
std::string refused_points(std::size_t step) {
  const std::vector<moesim::kernels::measure::PointSpec> points =
      moesim::kernels::measure::find_suite("attention").points(1);
  CHECK(points.size() > 100);
  return in_process("MOESIM_CUDNN_LIBRARY", "", [&] {
    need_driver();
    std::string refused;
    for (std::size_t at = 0; at < points.size(); at += step) {
      try {
        plan(moesim::kernels::measure::attention_shape(points[at].params), described(h100));
      } catch (const moesim::Error& error) {
        refused += points[at].label() + ": " + error.what() + "; ";
      }
    }
    return refused;
  });
}

}  // namespace

// All of them by hand, before a run on a GPU: MOESIM_ALL_POINTS=1.
TEST_CASE("cuDNN plans every fifth point of the attention suite for an H100", "[slow]") {
  need_cudnn();
  const std::string refused = refused_points(std::getenv("MOESIM_ALL_POINTS") != nullptr ? 1 : 5);
  INFO(refused);
  CHECK(refused.empty());
}

TEST_CASE("cuDNN itself refuses what it cannot do, and a device that is half described") {
  need_cudnn();
  CHECK_THAT(planned({4, 1024, 32, 8, 129}, described(h100)), ContainsSubstring("thrown: cuDNN"));
  CHECK_THAT(planned({4, 1024, 32, 8, 128}, R"({"deviceVer":900})"),
             ContainsSubstring("thrown: cuDNN: a device's properties"));
}
#endif
