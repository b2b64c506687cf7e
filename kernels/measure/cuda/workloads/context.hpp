#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/cublas.hpp"
#include "kernels/measure/cuda/device/stream_timer.hpp"
#include "kernels/measure/cuda/libraries/cudnn.hpp"
#include "kernels/measure/cuda/libraries/cupti_tracer.hpp"
#include "kernels/measure/cuda/libraries/fp8_product.hpp"
#include "kernels/measure/ranks/group.hpp"

namespace moesim::kernels::measure::cuda {

class NcclCommunicator;

// What the workloads of one device share.
struct Context {
  Context(int index, Group& group);
  ~Context();
  Context(const Context&) = delete;  // it owns handles
  Context& operator=(const Context&) = delete;

  int index;
  Group& group;
  DeviceFacts facts;
  Versions versions;
  std::unique_ptr<StreamTimer> timer;
  // Throws NotMeasurable with the reason if there is no cuBLAS.
  cublasHandle_t cublas() const;
  // Made when it is first wanted. Throws NotMeasurable with the reason if there is no cuBLASLt.
  const CublasLtHandle& cublas_lt();
  // Made when it is first wanted. Throws NotMeasurable with the reason if there is no cuDNN.
  const CudnnHandle& cudnn();
  DeviceBuffer<std::uint8_t> workspace;  // of cuBLAS, so that its products can be captured
  // The communicator of the group's ranks, which join when the first exchange is prepared, all of
  // them together and before they allocate: NCCL may hang or end the process as it starts, and what
  // one GPU measures alone needs none. Throws NotMeasurable with the reason if a rank has no NCCL,
  // or it fails.
  NcclCommunicator& nccl();
  // Queues an exchange on the timer's stream as queue_together() does.
  void queue_together(const std::function<void()>& queue);
  // The communicators of a hierarchical exchange: this node's ranks, and those of the same place on
  // all nodes. Made when one is first wanted, by all ranks together. Throws NotMeasurable if the
  // ranks are not equally many on several nodes, node by node.
  struct Tiers {
    std::unique_ptr<NcclCommunicator> inside, across;
  };
  Tiers& tiers();
  // The tracer of the process, attached when it is first wanted: sessions without traces then
  // launch as cheaply as programs do. Null where none works.
  CuptiTracer* tracer();
  std::string trace_trouble;  // why not, as far as is known
  bool shared_gpu = false;    // two ranks of the group are on one GPU

 private:
  std::optional<CublasHandle> cublas_;
  std::unique_ptr<CublasLtHandle> cublas_lt_;
  std::unique_ptr<CudnnHandle> cudnn_;
  std::unique_ptr<NcclCommunicator> nccl_;
  std::string nccl_trouble_;  // why there is none, once all have tried
  std::unique_ptr<Tiers> tiers_;
};

// "GPU-1b2c...", the device's own; "" if the driver does not say.
std::string uuid_of(int index);

// How many copies of a workload's buffers: as many as pass twice the L2 together, at most what
// memory allows; at least one.
std::size_t rotation(const Context& context, double bytes_of_one);

// Calls `work`; a CudaError becomes OutOfDeviceMemory, NotMeasurable (what this device or library
// does not support; of an exchange, all ranks meet it at the same call) or an Error that says the
// device failed.
template <typename Work>
auto translated(const Work& work) -> decltype(work());
[[noreturn]] void rethrow(const CudaError& error);

template <typename Work>
auto translated(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const CudaError& error) {
    rethrow(error);
  }
}

}  // namespace moesim::kernels::measure::cuda
