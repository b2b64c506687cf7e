#include "kernels/measure/cuda/libraries/cublaslt_library.hpp"

#include <fmt/format.h>

#include "kernels/base/shared_library.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

constexpr int major_version = CUBLAS_VERSION / 10000;

CublasLtLibrary load() {
  CublasLtLibrary library;
  const std::string name = fmt::format("libcublasLt.so.{}", major_version);
  const SharedLibrary file = open_shared_library(name, "MOESIM_CUBLASLT_LIBRARY");
  if (file.handle == nullptr) {
    library.trouble = fmt::format("cuBLASLt is missing ({}): install cuBLAS of CUDA {}",
                                  file.trouble, major_version);
    return library;
  }
  const NeededFunctions needed(file, library.trouble, name + " is not cuBLASLt: it has no ");
  needed.find(library.create, "cublasLtCreate");
  needed.find(library.destroy, "cublasLtDestroy");
  needed.find(library.get_version, "cublasLtGetVersion");
  needed.find(library.status_name, "cublasLtGetStatusName");
  needed.find(library.status_string, "cublasLtGetStatusString");
  needed.find(library.product_create, "cublasLtMatmulDescCreate");
  needed.find(library.product_destroy, "cublasLtMatmulDescDestroy");
  needed.find(library.product_set, "cublasLtMatmulDescSetAttribute");
  needed.find(library.layout_create, "cublasLtMatrixLayoutCreate");
  needed.find(library.layout_destroy, "cublasLtMatrixLayoutDestroy");
  needed.find(library.preference_create, "cublasLtMatmulPreferenceCreate");
  needed.find(library.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  needed.find(library.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  needed.find(library.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  needed.find(library.multiply, "cublasLtMatmul");
  return library;
}

}  // namespace

std::string CublasLtLibrary::words(cublasStatus_t status) const {
  return fmt::format("{}, {}", status_name(status), status_string(status));
}

const CublasLtLibrary& cublas_lt() {
  static const CublasLtLibrary library = load();
  return library;
}

}  // namespace moesim::kernels::measure::cuda
