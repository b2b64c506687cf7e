// How cuBLAS is found, in processes of their own since a library is loaded once.
#include "kernels/base/cublas.hpp"
#include "kernels/base/cublas_library.hpp"
#include "sim/base/error.hpp"
#include "tests/kernels/measure/cuda/in_process.hpp"
#include "tests/support/catch.hpp"

using moesim::kernels::cublas_library;

namespace {

std::string trouble() {
  const std::string& text = cublas_library().trouble;
  return text.empty() ? "usable" : text;
}

std::string made_handle() {
  const moesim::kernels::CublasHandle handle;
  return "made";
}

}  // namespace

TEST_CASE("a cuBLAS that is missing or something else is told apart") {
  const std::string file = "/no/such/libcublas.so";
  CHECK_THAT(in_process("MOESIM_CUBLAS_LIBRARY", file, trouble),
             ContainsSubstring("cuBLAS is missing") && ContainsSubstring(file) &&
                 ContainsSubstring("MOESIM_CUBLAS_LIBRARY"));
  CHECK_THAT(in_process("MOESIM_CUBLAS_LIBRARY", file, made_handle),
             ContainsSubstring("thrown: cuBLAS is missing"));
  CHECK_THAT(in_process("MOESIM_CUBLAS_LIBRARY", MOESIM_FAKE_NCCL, trouble),
             ContainsSubstring("it has no cublasCreate_v2"));
  CHECK(in_process("MOESIM_CUBLAS_LIBRARY", file, [] {
          return moesim::kernels::has_grouped_gemm() ? "grouped" : "one by one";
        }) == "one by one");
}

// No GPU is needed to find the functions.
TEST_CASE("the cuBLAS of the toolkit has all functions in use") {
  const std::string found = in_process("MOESIM_CUBLAS_LIBRARY", "", trouble);
  if (found.find("cuBLAS is missing") != std::string::npos) MOESIM_SKIP(found);
  CHECK(found == "usable");
}
