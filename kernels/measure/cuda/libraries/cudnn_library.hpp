#pragma once

#include <cudnn_graph.h>

#include <string>
#include <vector>

namespace moesim::kernels::measure::cuda {

// cuDNN's functions in use, of the library found at run time.
struct CudnnLibrary {
  decltype(&::cudnnGetVersion) get_version = nullptr;
  decltype(&::cudnnGetErrorString) error_string = nullptr;
  decltype(&::cudnnGetLastErrorString) last_error = nullptr;  // since 9.0
  decltype(&::cudnnCreate) create = nullptr;
  decltype(&::cudnnDestroy) destroy = nullptr;
  decltype(&::cudnnSetStream) set_stream = nullptr;
  decltype(&::cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&::cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&::cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&::cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&::cudnnBackendFinalize) finalize = nullptr;
  decltype(&::cudnnBackendExecute) execute = nullptr;
  std::string trouble;  // "": usable

  // "CUDNN_STATUS_NOT_SUPPORTED (no engine ...)".
  std::string words(cudnnStatus_t status) const;
  // Throws NotMeasurable: `what` failed, in cuDNN's words.
  void check(cudnnStatus_t status, const char* what) const;
};

// MOESIM_CUDNN_LIBRARY names the file, if it is set; loaded once.
const CudnnLibrary& cudnn();

// One backend descriptor and what is set on it; destroyed with it.
class CudnnDescriptor {
 public:
  CudnnDescriptor(cudnnBackendDescriptorType_t type, const char* name);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;
  CudnnDescriptor(const CudnnDescriptor&) = delete;  // it owns the descriptor
  CudnnDescriptor& operator=(const CudnnDescriptor&) = delete;

  cudnnBackendDescriptor_t get() const { return descriptor_; }

  // All throw NotMeasurable that names the descriptor.
  template <typename Value>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       const std::vector<Value>& values) {
    return set(name, type, static_cast<std::int64_t>(values.size()), values.data());
  }
  template <typename Value>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       Value value) {
    return set(name, type, 1, &value);
  }
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, const CudnnDescriptor& part) {
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, part.get());
  }
  CudnnDescriptor& finalize();

 private:
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       std::int64_t count, const void* values);
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  const char* name_;
};

}  // namespace moesim::kernels::measure::cuda
