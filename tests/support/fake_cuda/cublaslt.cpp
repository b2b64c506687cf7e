// A libcublasLt that computes nothing and writes down, in FAKE_CUBLASLT_LOG, what it is asked: a
// line for each choice of an algorithm and each product. FAKE_CUBLASLT says what it refuses:
// "start" (no handle), "choice" (no algorithm), "product".
#include <cublasLt.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>

namespace {

bool refuses(const char* what) {
  const char* mode = std::getenv("FAKE_CUBLASLT");
  return mode != nullptr && std::strcmp(mode, what) == 0;
}

void log(const std::string& line) {
  const char* path = std::getenv("FAKE_CUBLASLT_LOG");
  if (path != nullptr) std::ofstream(path, std::ios::app) << line << '\n';
}

struct Object {
  std::string text;                         // of a layout
  std::map<int, std::uint64_t> attributes;  // of the others
};
template <typename Handle>
cublasStatus_t make(Handle* handle, const std::string& text) {
  *handle = reinterpret_cast<Handle>(new Object{text, {}});
  return CUBLAS_STATUS_SUCCESS;
}
template <typename Handle>
const Object& of(Handle handle) {
  return *reinterpret_cast<const Object*>(handle);
}
template <typename Handle>
cublasStatus_t remove(Handle handle) {
  delete reinterpret_cast<Object*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
template <typename Handle>
cublasStatus_t set(Handle handle, int name, const void* value, std::size_t size) {
  std::uint64_t number = 0;
  std::memcpy(&number, value, size);
  reinterpret_cast<Object*>(handle)->attributes[name] = number;
  return CUBLAS_STATUS_SUCCESS;
}

std::string attributes(const Object& object) {
  std::string text;
  for (const auto& [name, value] : object.attributes) {
    text += " " + std::to_string(name) + "=" + std::to_string(value);
  }
  return text;
}

std::string address(const void* pointer) {
  return " " + std::to_string(reinterpret_cast<std::uintptr_t>(pointer));
}

constexpr std::uint64_t chosen = 41;

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (refuses("start")) return CUBLAS_STATUS_NOT_INITIALIZED;
  return make(handle, "");
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return remove(handle); }
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusName(cublasStatus_t) { return "as the stand-in was told"; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "as the stand-in was told"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return make(product, "compute " + std::to_string(compute) + " scale " + std::to_string(scale));
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) { return remove(product); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void* value, size_t size) {
  return set(product, name, value, size);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t apart) {
  return make(layout, std::to_string(type) + " " + std::to_string(rows) + " x " +
                          std::to_string(columns) + " by " + std::to_string(apart));
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return remove(layout); }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* limits) {
  return make(limits, "");
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t limits) {
  return remove(limits);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t limits,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* value, size_t size) {
  return set(limits, name, value, size);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t limits, int wanted,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
  log("choice of " + std::to_string(wanted) + ": " + of(product).text + ";" +
      attributes(of(product)) + "; " + of(a).text + "; " + of(b).text + "; " + of(c).text + "; " +
      of(d).text + ";" + attributes(of(limits)));
  *count = 0;
  if (refuses("choice")) return CUBLAS_STATUS_NOT_SUPPORTED;
  found->algo.data[0] = chosen;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t, const void* b,
                              cublasLtMatrixLayout_t, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (refuses("product")) return CUBLAS_STATUS_EXECUTION_FAILED;
  log("product " + std::to_string(*static_cast<const float*>(alpha)) + " " +
      std::to_string(*static_cast<const float*>(beta)) + address(a) + address(b) + address(c) +
      address(d) + " algorithm " + std::to_string(algorithm->data[0]) + " workspace" +
      address(workspace) + " " + std::to_string(workspace_bytes) + " stream" + address(stream) +
      ";" + attributes(of(product)));
  return CUBLAS_STATUS_SUCCESS;
}
}
