// How cuBLAS is found and called, in processes of their own since a library is loaded once.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include "kernels/base/cublas.hpp"
#include "kernels/base/cublas_library.hpp"
#include "kernels/experts/device_ffn.hpp"
#include "kernels/layer/device_layer.hpp"
#include "kernels/measure/cuda/workloads/context.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "tests/kernels/measure/cuda/in_process.hpp"
#include "tests/support/catch.hpp"

namespace kernels = moesim::kernels;
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

template <typename Pointer>
Pointer at(std::uintptr_t address) {
  return reinterpret_cast<Pointer>(address);
}

// Two calls each of an FFN's product and a layer's, on a handle that has a workspace.
std::string two_passes() {
  const kernels::CublasHandle cublas;
  auto* const stream = at<cudaStream_t>(7);
  kernels::set_stream(cublas.get(), stream, at<void*>(99), 1 << 20);
  const kernels::experts::FfnPlan plan =
      kernels::experts::plan_ffn({2, 64, 128}, kernels::experts::RowLayout::padded(2, 16), {});
  kernels::experts::FfnTensors tensors;
  for (std::size_t each = 0; each < kernels::experts::tensor_count; ++each) {
    tensors[static_cast<kernels::experts::Tensor>(each)] = at<void*>(4096);
  }
  kernels::experts::DeviceFfn ffn(cublas.get(), stream);
  kernels::layer::DeviceLayer layer(cublas.get(), stream);
  for (int pass = 0; pass < 2; ++pass) {
    ffn.multiply(plan.forward.front(), tensors);
    layer.gemm({16, 64, 128}, at<void*>(16), at<void*>(32), at<void*>(48));
  }
  return "done";
}

// What a session makes of a product for which the stand-in has `status`.
std::string refused(cublasStatus_t status) {
  return in_process("MOESIM_CUBLAS_LIBRARY", MOESIM_FAKE_CUBLAS, [status] {
    ::setenv("FAKE_CUBLAS", std::to_string(status).c_str(), 1);
    const kernels::CublasHandle cublas;
    try {
      kernels::measure::cuda::translated([&] {
        kernels::run_gemm(cublas.get(), {16, 64, 128}, at<void*>(16), at<void*>(32), at<void*>(48));
      });
    } catch (const kernels::measure::NotMeasurable& error) {
      return std::string("not measurable: ") + error.what();
    } catch (const kernels::measure::OutOfDeviceMemory&) {
      return std::string("no memory");
    } catch (const kernels::measure::DeviceFailed&) {
      return std::string("the device failed");
    }
    return std::string("done");
  });
}

}  // namespace

TEST_CASE("a product that cuBLAS does not support costs its point, not the device") {
  CHECK_THAT(refused(CUBLAS_STATUS_NOT_SUPPORTED),
             ContainsSubstring("not measurable: cublasGemmEx"));
  CHECK(refused(CUBLAS_STATUS_ALLOC_FAILED) == "no memory");
  CHECK(refused(CUBLAS_STATUS_EXECUTION_FAILED) == "the device failed");
  CHECK(refused(CUBLAS_STATUS_SUCCESS) == "done");
}

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

TEST_CASE("every product of experts and layers runs with the workspace that was set") {
  const std::string log =
      (std::filesystem::temp_directory_path() / ("moesim-cublas-" + std::to_string(::getpid())))
          .string();
  std::filesystem::remove(log);
  ::setenv("FAKE_CUBLAS_LOG", log.c_str(), 1);
  CHECK(in_process("MOESIM_CUBLAS_LIBRARY", MOESIM_FAKE_CUBLAS, two_passes) == "done");
  ::unsetenv("FAKE_CUBLAS_LOG");
  const std::string lines = moesim::read_file(log);
  std::filesystem::remove(log);
  // The stream once, then nothing but products.
  CHECK(lines ==
        "set stream 7 workspace 0\n"
        "batched stream 7 workspace 99\n"
        "one stream 7 workspace 99\n"
        "batched stream 7 workspace 99\n"
        "one stream 7 workspace 99\n");
}
