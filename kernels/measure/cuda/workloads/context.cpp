#include "kernels/measure/cuda/workloads/context.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/base/cublas_library.hpp"
#include "kernels/measure/cuda/libraries/nccl.hpp"
#include "kernels/measure/cuda/libraries/nvml.hpp"
#include "kernels/measure/ranks/launch.hpp"
#include "sim/base/error.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // what cuBLAS asks for on Hopper

std::string version_text(int version) {  // 13000 -> "13.0"
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int byte = 0; byte < 16; ++byte) {
    if (byte == 4 || byte == 6 || byte == 8 || byte == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[byte]));
  }
  return text;
}

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  return worked(cudaDeviceGetAttribute(&value, which, index)) ? value : 0;
}

// Dense bf16 tensor-core FLOPs per SM and cycle, from the vendor's architecture whitepapers; 0:
// not known.
double flops_per_cycle(int major, int minor) {
  if (major == 8 && minor == 0) return 2048;
  if (major == 8) return 1024;
  if (major == 9) return 4096;
  if (major == 10) return 8192;
  return 0;
}

DeviceFacts read_facts(int index) {
  cudaDeviceProp properties{};
  MOESIM_CUDA(cudaGetDeviceProperties(&properties, index));
  DeviceFacts facts;
  facts.name = properties.name;
  facts.uuid = uuid_text(properties.uuid);
  facts.compute_major = properties.major;
  facts.compute_minor = properties.minor;
  facts.sms = properties.multiProcessorCount;
  facts.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  facts.l2_bytes = properties.l2CacheSize;
  // Double data rate; kHz and bits.
  facts.memory_bytes_per_second = 2.0 * 1e3 * attribute(cudaDevAttrMemoryClockRate, index) *
                                  attribute(cudaDevAttrGlobalMemoryBusWidth, index) / 8;
  facts.peak_bf16_flops = flops_per_cycle(properties.major, properties.minor) *
                          properties.multiProcessorCount * 1e3 *
                          attribute(cudaDevAttrClockRate, index);
  int count = 1;
  MOESIM_CUDA(cudaGetDeviceCount(&count));
  facts.gpus_in_node = count;
  return facts;
}

Versions read_versions() {
  Versions versions;
  int number = 0;
  if (worked(cudaDriverGetVersion(&number))) versions.driver = version_text(number);
  if (worked(cudaRuntimeGetVersion(&number))) versions.cuda_runtime = version_text(number);
  return versions;
}

std::string host() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return machine_identity(name, "/proc/sys/kernel/random/boot_id");
}

}  // namespace

std::string uuid_of(int index) {
  cudaDeviceProp properties{};
  return worked(cudaGetDeviceProperties(&properties, index)) ? uuid_text(properties.uuid) : "";
}

Context::Context(int device, Group& members) : index(device), group(members) {
  MOESIM_CUDA(cudaSetDevice(index));
  facts = read_facts(index);
  timer = std::make_unique<StreamTimer>(facts.l2_bytes, static_cast<int>(facts.sms));
  timer->cold([] {});  // a GPU that this build has no kernels for shows here, not amid the points
  versions = read_versions();
  // Its own version, where NVML tells it; else the newest CUDA it knows.
  if (std::string driver = device_state(facts.uuid).driver; !driver.empty()) {
    versions.driver = std::move(driver);
  }
  if (cublas_library().trouble.empty()) {
    cublas_.emplace();
    workspace = DeviceBuffer<std::uint8_t>(workspace_bytes);
    set_stream(cublas_->get(), timer->stream(), workspace.data(), workspace.size());
    versions.cublas = cublas_->version();
  }
  trace_trouble = CuptiTracer::missing();
  versions.cupti = CuptiTracer::version();
  if (group.size() == 1) return;
  const std::vector<std::string> uuids = group.all_gather(facts.uuid);
  shared_gpu = std::set<std::string>(uuids.begin(), uuids.end()).size() < uuids.size();
  const std::vector<std::string> hosts = group.all_gather(host());
  facts.gpus_in_node = static_cast<int>(std::count(hosts.begin(), hosts.end(), host()));
}

NcclCommunicator& Context::nccl() {
  if (group.size() == 1) throw NotMeasurable("one GPU alone exchanges nothing");
  if (!nccl_ && nccl_trouble_.empty()) {
    nccl_ = NcclCommunicator::join(group, nccl_trouble_);
    if (nccl_) versions.nccl = nccl_->version();
  }
  if (!nccl_) throw NotMeasurable(nccl_trouble_);
  return *nccl_;
}

void Context::queue_together(const std::function<void()>& queue) {
  measure::queue_together(
      group, [this] { MOESIM_CUDA(cudaStreamSynchronize(timer->stream())); }, queue);
}

cublasHandle_t Context::cublas() const {
  if (!cublas_) throw NotMeasurable(cublas_library().trouble);
  return cublas_->get();
}

const CublasLtHandle& Context::cublas_lt() {
  if (!cublas_lt_) cublas_lt_ = std::make_unique<CublasLtHandle>();
  return *cublas_lt_;
}

const CudnnHandle& Context::cudnn() {
  if (!cudnn_) cudnn_ = std::make_unique<CudnnHandle>(timer->stream());
  return *cudnn_;
}

CuptiTracer* Context::tracer() {
  return trace_trouble.empty() ? CuptiTracer::get(trace_trouble) : nullptr;
}

Context::Tiers& Context::tiers() {
  if (tiers_) return *tiers_;
  // All ranks see the same hosts, so that all refuse or none.
  const int gpus = ranks_per_node(group.all_gather(host()));
  if (gpus == 0) {
    throw NotMeasurable("the nodes have different numbers of ranks, or ranks out of order");
  }
  auto made = std::make_unique<Tiers>();
  made->inside = nccl().split(group.rank() / gpus);
  made->across = nccl().split(group.rank() % gpus);
  tiers_ = std::move(made);
  return *tiers_;
}

Context::~Context() {
  cudnn_.reset();  // before its stream
  tiers_.reset();
  nccl_.reset();
}

std::size_t rotation(const Context& context, double bytes_of_one) {
  std::size_t free_bytes = 0, total = 0;
  MOESIM_CUDA(cudaMemGetInfo(&free_bytes, &total));
  const double one = std::max(bytes_of_one, 256.0);
  const double wanted = std::ceil(2.0 * static_cast<double>(context.facts.l2_bytes) / one) + 1;
  const double fitting = std::floor(0.8 * static_cast<double>(free_bytes) / one);
  // More than a few hundred small buffers change nothing but the time to fill them.
  return static_cast<std::size_t>(std::clamp(std::min(wanted, fitting), 1.0, 256.0));
}

void rethrow(const CudaError& error) {
  if (error.code() == cudaErrorMemoryAllocation) {
    std::size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    throw OutOfDeviceMemory(fmt::format("out of device memory: {} MiB of {} are free ({})",
                                        free_bytes >> 20U, total >> 20U, error.what()));
  }
  if (error.code() == cudaErrorNotSupported) throw NotMeasurable(error.what());
  if (error.code() == cudaErrorNoKernelImageForDevice) {
    throw Error(fmt::format("{}: this build has no kernels for this GPU: build it with "
                            "-DMOESIM_CUDA_ARCHITECTURES=native",
                            error.what()),
                ExitCode::missing_hardware);
  }
  throw DeviceFailed(fmt::format(
      "{}: the device cannot go on in this process; run again with --resume", error.what()));
}

}  // namespace moesim::kernels::measure::cuda
