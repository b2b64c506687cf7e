#pragma once

#include <cublasLt.h>

#include <string>

namespace moesim::kernels::measure::cuda {

// cuBLASLt's functions in use, of the library found at run time.
struct CublasLtLibrary {
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtDestroy) destroy = nullptr;
  decltype(&::cublasLtGetVersion) get_version = nullptr;
  decltype(&::cublasLtGetStatusName) status_name = nullptr;
  decltype(&::cublasLtGetStatusString) status_string = nullptr;
  decltype(&::cublasLtMatmulDescCreate) product_create = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) product_destroy = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) product_set = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&::cublasLtMatmul) multiply = nullptr;
  std::string trouble;  // "": usable

  // "CUBLAS_STATUS_NOT_SUPPORTED, the requested ..."
  std::string words(cublasStatus_t status) const;
};

// The major version that this build was made for, loaded once; MOESIM_CUBLASLT_LIBRARY names the
// file, if it is set. Does not throw: look at `trouble` first.
const CublasLtLibrary& cublas_lt();

}  // namespace moesim::kernels::measure::cuda
