// FP8 products: the calls of cuBLASLt that a point makes, held to a stand-in for the library, and
// what its numbers mean.
#include <cuda_fp8.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <vector>

#include "kernels/measure/cuda/libraries/cublaslt_library.hpp"
#include "kernels/measure/cuda/libraries/fp8_product.hpp"
#include "kernels/measure/points/fp8_scales.hpp"
#include "sim/base/file.hpp"
#include "tests/kernels/measure/cuda/in_process.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
namespace cuda = moesim::kernels::measure::cuda;

namespace {

// An address that is never read.
template <typename Pointer>
Pointer at(std::uintptr_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<Pointer>(address);
}

cuda::Fp8Operands operands(std::uintptr_t base) {
  return {at<const std::uint8_t*>(base + 1), at<const std::uint8_t*>(base + 2),
          at<const float*>(base + 3), at<const float*>(base + 4), at<std::uint16_t*>(base + 5)};
}

std::string two_calls(bool by_block) {
  const cuda::CublasLtHandle handle;
  cuda::Fp8Product product(handle, {64, 256, 512, by_block}, operands(100), 1 << 20);
  product.run(operands(100), at<void*>(7), at<cudaStream_t>(9));
  product.run(operands(200), at<void*>(7), at<cudaStream_t>(9));
  return "done";
}

struct Told {
  std::string said;
  std::vector<std::string> lines;
};
Told told(const std::string& mode, bool by_block) {
  const std::string log =
      (std::filesystem::temp_directory_path() / ("moesim-cublaslt-" + std::to_string(::getpid())))
          .string();
  std::filesystem::remove(log);
  Told result;
  result.said = in_process("MOESIM_CUBLASLT_LIBRARY", MOESIM_FAKE_CUBLASLT, [&] {
    ::setenv("FAKE_CUBLASLT", mode.c_str(), 1);
    ::setenv("FAKE_CUBLASLT_LOG", log.c_str(), 1);
    return two_calls(by_block);
  });
  if (!std::filesystem::exists(log)) return result;
  std::istringstream text(moesim::read_file(log));
  for (std::string line; std::getline(text, line);) result.lines.push_back(line);
  std::filesystem::remove(log);
  return result;
}

}  // namespace

// Column-major, Y^T [n, m] = W^T X: A is W [k, n] transposed, B is X [k, m].
TEST_CASE("an FP8 point asks cuBLASLt for the transposed product, weights first") {
  const std::string kind =
      fmt::format("compute {} scale {};", int{CUBLAS_COMPUTE_32F}, int{CUDA_R_32F});
  // 3 and 4: transposed, not transposed; 14: no fast accumulation; 17 and 18: the scales.
  static_assert(CUBLASLT_MATMUL_DESC_TRANSA == 3 && CUBLASLT_MATMUL_DESC_TRANSB == 4);
  static_assert(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER == 17);
  static_assert(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER == 18);
  static_assert(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES == 1);
  const std::string plain = fmt::format(" 3={} 4={} 17=104 18=103 {}=0", int{CUBLAS_OP_T},
                                        int{CUBLAS_OP_N}, int{CUBLASLT_MATMUL_DESC_FAST_ACCUM});
  const std::string layouts = fmt::format(
      "; {0} 512 x 256 by 512; {0} 512 x 64 by 512; {1} 256 x 64 by 256; {1} 256 x 64 by 256; "
      "1=1048576",
      int{CUDA_R_8F_E4M3}, int{CUDA_R_16BF});
  const Told tensor = told("", false);
  CHECK(tensor.said == "done");
  REQUIRE(tensor.lines.size() == 3);
  CHECK(tensor.lines[0] == "choice of 1: " + kind + plain + layouts);
  const std::string call =
      "product 1.000000 0.000000 {0}2 {0}1 {0}5 {0}5 algorithm 41 workspace 7 "
      "1048576 stream 9;";
  CHECK(tensor.lines[1] == fmt::format(fmt::runtime(call), "10") + plain);
  // The second call has its own scales.
  CHECK_THAT(tensor.lines[2], ContainsSubstring(fmt::format(fmt::runtime(call), "20")) &&
                                  ContainsSubstring(" 17=204 18=203 "));

  const Told block = told("", true);
  CHECK(block.said == "done");
  REQUIRE(block.lines.size() == 3);
  // Attributes 31 and 32: one scale per 128 x 128 of A, one per 128 values of B.
  CHECK(block.lines[0] == "choice of 1: " + kind + plain + " 31=5 32=4" + layouts);
}

TEST_CASE("a product that cuBLASLt does not have costs its point, a failure the device") {
  CHECK_THAT(told("choice", false).said,
             ContainsSubstring("thrown: cuBLASLt has no FP8 product for this shape"));
  CHECK_THAT(told("start", false).said, ContainsSubstring("thrown: cuBLASLt does not start"));
  CHECK_THAT(told("product", true).said, ContainsSubstring("thrown: cublasLtMatmul failed"));
  CHECK_THAT(
      in_process("MOESIM_CUBLASLT_LIBRARY", "/no/such/file", [] { return two_calls(false); }),
      ContainsSubstring("thrown: cuBLASLt is missing"));
  CHECK_THAT(in_process("MOESIM_CUBLASLT_LIBRARY", MOESIM_FAKE_NCCL,
                        [] { return cuda::cublas_lt().trouble; }),
             ContainsSubstring("it has no cublasLtCreate"));
}

// No GPU is needed to find the functions.
TEST_CASE("the cuBLASLt of the toolkit has all functions in use") {
  const std::string found =
      in_process("MOESIM_CUBLASLT_LIBRARY", "", [] { return cuda::cublas_lt().trouble; });
  if (found.find("cuBLASLt is missing") != std::string::npos) MOESIM_SKIP(found);
  CHECK(found.empty());
}

TEST_CASE("FP8 is refused, with the reason, where tensor cores or the library lack it") {
  CHECK_THAT(cuda::fp8_trouble(false, 8, 0, 130000), ContainsSubstring("8.9"));
  CHECK(cuda::fp8_trouble(false, 8, 9, 130000).empty());
  CHECK(cuda::fp8_trouble(false, 9, 0, 120000).empty());
  CHECK(cuda::fp8_trouble(false, 10, 0, 130000).empty());
  CHECK(cuda::fp8_trouble(true, 9, 0, 130000).empty());
  CHECK_THAT(cuda::fp8_trouble(true, 10, 0, 130000), ContainsSubstring("Hopper (9.0) alone"));
  CHECK_THAT(cuda::fp8_trouble(true, 9, 0, 120800), ContainsSubstring("12.9"));
}

TEST_CASE("e4m3 values are those of CUDA's own conversion") {
  for (int bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<std::uint8_t>(bits);
    __nv_fp8_e4m3 theirs;
    theirs.__x = byte;
    const double expected = static_cast<double>(static_cast<float>(theirs));
    const double value = measure::e4m3_value(byte);
    CAPTURE(bits);
    CHECK((value == expected || (std::isnan(value) && std::isnan(expected))));
  }
}

TEST_CASE("scales by block lie in rows of X's blocks and in padded rows of W's") {
  // 8 x 384 and 256 x 384: 3 blocks of k, which W pads to 4.
  const measure::Fp8Scales scales(true, 8, 256, 384);
  CHECK(scales.of_x() == 24);
  CHECK(scales.of_w() == 8);
  CHECK(scales.x_place(5, 0) == 5);
  CHECK(scales.x_place(5, 127) == 5);
  CHECK(scales.x_place(5, 128) == 13);
  CHECK(scales.x_place(7, 383) == 23);
  CHECK(scales.w_place(0, 383) == 2);
  CHECK(scales.w_place(127, 128) == 1);
  CHECK(scales.w_place(128, 0) == 4);
  CHECK(scales.w_place(255, 256) == 6);
  const measure::Fp8Scales one(false, 8, 256, 384);
  CHECK(one.of_x() == 1);
  CHECK(one.of_w() == 1);
  CHECK(one.x_place(7, 300) == 0);
  CHECK(one.w_place(200, 300) == 0);
}
