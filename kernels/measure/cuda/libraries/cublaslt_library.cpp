#include "kernels/measure/cuda/libraries/cublaslt_library.hpp"

#include <fmt/format.h>

#include <type_traits>

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
  const auto find = [&](auto& function, const char* symbol) {
    function = find_function<std::remove_reference_t<decltype(function)>>(file, symbol);
    if (function == nullptr && library.trouble.empty()) {
      library.trouble = fmt::format("{} is not cuBLASLt: it has no {}", name, symbol);
    }
  };
  find(library.create, "cublasLtCreate");
  find(library.destroy, "cublasLtDestroy");
  find(library.get_version, "cublasLtGetVersion");
  find(library.status_name, "cublasLtGetStatusName");
  find(library.status_string, "cublasLtGetStatusString");
  find(library.product_create, "cublasLtMatmulDescCreate");
  find(library.product_destroy, "cublasLtMatmulDescDestroy");
  find(library.product_set, "cublasLtMatmulDescSetAttribute");
  find(library.layout_create, "cublasLtMatrixLayoutCreate");
  find(library.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(library.preference_create, "cublasLtMatmulPreferenceCreate");
  find(library.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(library.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(library.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(library.multiply, "cublasLtMatmul");
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
