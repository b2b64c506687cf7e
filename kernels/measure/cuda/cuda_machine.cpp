#include <fmt/format.h>

#include <chrono>

#include "kernels/measure/cuda/libraries/nvml.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "kernels/measure/devices/machine.hpp"

namespace moesim::kernels::measure {
namespace {

using cuda::Context;

class CudaDevice : public Device {
 public:
  CudaDevice(int index, Group& group)
      : context_(cuda::translated([&] { return std::make_unique<Context>(index, group); })) {}

  DeviceFacts facts() const override { return context_->facts; }
  Versions versions() const override { return context_->versions; }
  DeviceState state() const override { return cuda::device_state(context_->facts.uuid); }
  std::string trace_trouble() const override { return context_->trace_trouble; }
  double now_s() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  std::unique_ptr<Workload> prepare(const PointSpec& spec, std::uint64_t seed) override {
    return cuda::translated([&] { return cuda::make_workload(*context_, spec, seed); });
  }

 private:
  std::unique_ptr<Context> context_;
};

class CudaMachine : public Machine {
 public:
  explicit CudaMachine(int gpus) : gpus_(gpus) {}
  int gpus() const override { return gpus_; }
  std::string identity(int index) const override { return cuda::uuid_of(index); }
  std::unique_ptr<Device> open(int index, Group& group) override {
    return std::make_unique<CudaDevice>(index, group);
  }

 private:
  int gpus_;
};

// What a user can do about a device that is not there.
std::string advice(cudaError_t code) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (code == cudaErrorInsufficientDriver && driver == 0) {
    return "no NVIDIA driver is loaded on this machine: install one, or run in a container that "
           "was started with its GPUs (--gpus all)";
  }
  if (code == cudaErrorInsufficientDriver) {
    return fmt::format(
        "the driver is too old: it knows CUDA {}.{}, this build needs {}.{}: update "
        "the driver, or build with an older toolkit",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  }
  if (code == cudaErrorNoDevice) {
    return "the driver shows no GPU: is CUDA_VISIBLE_DEVICES right?";
  }
  std::string text = fmt::format("{}: {}", cudaGetErrorName(code), cudaGetErrorString(code));
  if (code == cudaErrorSystemNotReady) {
    text += " (a node with NVSwitches needs its fabric manager: is nvidia-fabricmanager running?)";
  }
  if (code == cudaErrorSystemDriverMismatch) {
    text += " (the driver's library and its kernel module differ: reboot, or reload the module)";
  }
  return text;
}

}  // namespace

std::unique_ptr<Machine> open_machine() {
  const std::string trouble = machine_trouble();
  if (!trouble.empty()) throw no_machine(trouble);
  int count = 0;
  MOESIM_CUDA(cudaGetDeviceCount(&count));
  return std::make_unique<CudaMachine>(count);
}

std::string machine_trouble() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return "";
  return advice(code == cudaSuccess ? cudaErrorNoDevice : code);
}

std::string cuda_of_build() {
  return fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

}  // namespace moesim::kernels::measure
