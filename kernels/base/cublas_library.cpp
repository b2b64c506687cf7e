#include "kernels/base/cublas_library.hpp"

#include <fmt/format.h>

#include "kernels/base/shared_library.hpp"

namespace moesim::kernels {
namespace {

// cublas_v2.h renames functions by macros: cublasCreate is the symbol cublasCreate_v2.
#define MOESIM_TEXT(word) #word
#define MOESIM_SYMBOL(function) MOESIM_TEXT(function)

CublasLibrary load() {
  CublasLibrary library;
  const std::string name = fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR);
  const SharedLibrary file = open_shared_library(name, "MOESIM_CUBLAS_LIBRARY");
  if (file.handle == nullptr) {
    library.trouble = fmt::format("cuBLAS is missing ({}): install cuBLAS of CUDA {}", file.trouble,
                                  CUBLAS_VER_MAJOR);
    return library;
  }
  const NeededFunctions needed(
      file, library.trouble,
      fmt::format("{} is not cuBLAS {}: it has no ", name, CUBLAS_VER_MAJOR));
  needed.find(library.create, MOESIM_SYMBOL(cublasCreate));
  needed.find(library.destroy, MOESIM_SYMBOL(cublasDestroy));
  needed.find(library.get_version, MOESIM_SYMBOL(cublasGetVersion));
  needed.find(library.status_name, MOESIM_SYMBOL(cublasGetStatusName));
  needed.find(library.status_string, MOESIM_SYMBOL(cublasGetStatusString));
  needed.find(library.get_stream, MOESIM_SYMBOL(cublasGetStream));
  needed.find(library.set_stream, MOESIM_SYMBOL(cublasSetStream));
  needed.find(library.set_workspace, MOESIM_SYMBOL(cublasSetWorkspace));
  needed.find(library.gemm, MOESIM_SYMBOL(cublasGemmEx));
  needed.find(library.gemm_strided_batched, MOESIM_SYMBOL(cublasGemmStridedBatchedEx));
#if CUBLAS_VERSION >= 120500
  library.gemm_grouped_batched = find_function<decltype(library.gemm_grouped_batched)>(
      file, MOESIM_SYMBOL(cublasGemmGroupedBatchedEx));
#endif
  return library;
}

}  // namespace

const CublasLibrary& cublas_library() {
  static const CublasLibrary library = load();
  return library;
}

}  // namespace moesim::kernels
