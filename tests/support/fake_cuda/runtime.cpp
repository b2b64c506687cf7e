#include "tests/support/fake_cuda/runtime.hpp"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/measure/cuda/device/device_kernels.hpp"

FakeRuntime& fake_runtime() {
  thread_local FakeRuntime runtime;
  return runtime;
}

namespace {

cudaError_t kept(cudaError_t code) {
  if (code != cudaSuccess) fake_runtime().last = code;
  return code;
}
cudaError_t done(const char* what) {
  fake_runtime().calls.emplace_back(what);
  return cudaSuccess;
}

int something;
template <typename Handle>
cudaError_t give(Handle* handle) {
  *handle = reinterpret_cast<Handle>(&something);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(fake_runtime().last, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t) { return "an error of the stand-in"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the stand-in"; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 8;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  std::strcpy(properties->name, "a stand-in");
  properties->uuid.bytes[0] = static_cast<char>(device);
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  const auto found = fake_runtime().attributes.find(which);
  if (found == fake_runtime().attributes.end()) return kept(cudaErrorInvalidValue);
  *value = found->second;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaMalloc(void** memory, size_t size) {
  if (fake_runtime().malloc != cudaSuccess) return kept(fake_runtime().malloc);
  *memory = std::malloc(size);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t size, unsigned) { return cudaMalloc(memory, size); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int byte, size_t size) {
  std::memset(memory, byte, size);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int byte, size_t size, cudaStream_t) {
  return cudaMemset(memory, byte, size);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  std::memcpy(to, from, size);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t) {
  return cudaMemcpy(to, from, size, kind);
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *free_bytes = *total = size_t{1} << 30;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return give(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return done("synchronise"); }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return give(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return done("event"); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return done("capture"); }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = nullptr;
  if (fake_runtime().end_capture != cudaSuccess) return kept(fake_runtime().end_capture);
  return give(graph);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* graph, cudaGraph_t, unsigned long long) {
  return give(graph);
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return done("upload"); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return done("graph"); }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return done("attribute"); }
}

namespace moesim::kernels::measure::cuda {

void launch_hold(const volatile std::uint32_t*, std::uint32_t ticket, std::uint64_t,
                 volatile std::uint32_t* expired, Stream) {
  done("hold");
  if (fake_runtime().impatient) *expired = ticket;
}
void launch_clocks(SmClock*, int, Stream) { done("clocks"); }
void launch_read(const void*, std::size_t, std::uint32_t*, Stream) { done("read"); }
void launch_pattern(std::uint32_t* out, std::size_t words, std::uint32_t rank, std::uint32_t salt,
                    Stream) {
  done("pattern");
  for (std::size_t at = 0; at < words; ++at) out[at] = pattern_word(rank, salt, at);
}
void launch_compare_pattern(const std::uint32_t* in, std::size_t words, std::uint32_t rank,
                            std::uint32_t salt, unsigned long long* wrong, Stream) {
  done("compare");
  for (std::size_t at = 0; at < words; ++at)
    *wrong += in[at] == pattern_word(rank, salt, at) ? 0 : 1;
}

}  // namespace moesim::kernels::measure::cuda
