#ifdef MOESIM_HAVE_CUDNN
#include "kernels/measure/cuda/libraries/cudnn_library.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "kernels/base/shared_library.hpp"
#include "kernels/measure/devices/device.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

constexpr std::size_t oldest = 90000;

CudnnLibrary load() {
  CudnnLibrary library;
  const SharedLibrary file = open_shared_library("libcudnn.so.9", "MOESIM_CUDNN_LIBRARY");
  if (file.handle == nullptr) {
    library.trouble = fmt::format("cuDNN is missing ({}): install libcudnn9", file.trouble);
    return library;
  }
  const NeededFunctions needed(file, library.trouble, "cuDNN is too old: it has no ",
                               "; install libcudnn9");
  needed.find(library.get_version, "cudnnGetVersion");
  needed.find(library.error_string, "cudnnGetErrorString");
  needed.find(library.last_error, "cudnnGetLastErrorString");
  needed.find(library.create, "cudnnCreate");
  needed.find(library.destroy, "cudnnDestroy");
  needed.find(library.set_stream, "cudnnSetStream");
  needed.find(library.create_descriptor, "cudnnBackendCreateDescriptor");
  needed.find(library.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  needed.find(library.set_attribute, "cudnnBackendSetAttribute");
  needed.find(library.get_attribute, "cudnnBackendGetAttribute");
  needed.find(library.finalize, "cudnnBackendFinalize");
  needed.find(library.execute, "cudnnBackendExecute");
  if (library.trouble.empty() && library.get_version() < oldest) {
    library.trouble = fmt::format("cuDNN {} is too old: install libcudnn9", library.get_version());
  }
  return library;
}

}  // namespace

std::string CudnnLibrary::words(cudnnStatus_t status) const {
  char more[1024] = {};
  last_error(more, sizeof more - 1);
  std::string text = error_string(status);
  if (more[0] != '\0') text += fmt::format(" ({})", more);
  return text;
}

void CudnnLibrary::check(cudnnStatus_t status, const char* what) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw NotMeasurable(fmt::format("cuDNN: {}: {}", what, words(status)));
}

const CudnnLibrary& cudnn() {
  static const CudnnLibrary library = load();
  return library;
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type, const char* name)
    : name_(name) {
  cudnn().check(cudnn().create_descriptor(type, &descriptor_), name);
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) cudnn().destroy_descriptor(descriptor_);
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, nullptr)), name_(other.name_) {}

CudnnDescriptor& CudnnDescriptor::set(cudnnBackendAttributeName_t name,
                                      cudnnBackendAttributeType_t type, std::int64_t count,
                                      const void* values) {
  cudnn().check(cudnn().set_attribute(descriptor_, name, type, count, values), name_);
  return *this;
}

CudnnDescriptor& CudnnDescriptor::finalize() {
  cudnn().check(cudnn().finalize(descriptor_), name_);
  return *this;
}

}  // namespace moesim::kernels::measure::cuda
#endif
