// The calls of cuDNN that an attention point makes, held to a stand-in for the library.
#ifdef MOESIM_FAKE_CUDNN
#include "kernels/measure/cuda/libraries/cudnn.hpp"

#include <cudnn_graph.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include "sim/base/file.hpp"
#include "tests/kernels/measure/cuda/in_process.hpp"
#include "tests/support/catch.hpp"

namespace cuda = moesim::kernels::measure::cuda;

namespace {

// 2 sequences of 256 tokens, 8 heads in groups of 4, head size 64.
constexpr moesim::profile::AttentionShape shape{2, 256, 8, 2, 64};

// An address that is never read.
void* at(std::uintptr_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<void*>(address);
}

std::string one_call() {
  const cuda::CudnnHandle handle(nullptr);
  cuda::CudnnAttention attention(shape, handle);
  attention.run(at(16), at(32), at(48), at(64), at(80));
  return fmt::format("{} {}", attention.version(), attention.workspace_bytes());
}

// What one call says and what the stand-in that refuses `mode` has written down.
struct Told {
  std::string said;
  std::vector<std::string> lines;
};
Told told(const std::string& mode) {
  const std::string log =
      (std::filesystem::temp_directory_path() / ("moesim-cudnn-" + std::to_string(::getpid())))
          .string();
  std::filesystem::remove(log);
  Told result;
  result.said = in_process("MOESIM_CUDNN_LIBRARY", MOESIM_FAKE_CUDNN, [&] {
    ::setenv("FAKE_CUDNN", mode.c_str(), 1);
    ::setenv("FAKE_CUDNN_LOG", log.c_str(), 1);
    return one_call();
  });
  if (!std::filesystem::exists(log)) return result;
  std::istringstream text(moesim::read_file(log));
  for (std::string line; std::getline(text, line);) result.lines.push_back(line);
  std::filesystem::remove(log);
  return result;
}

std::vector<std::string> starting(const std::vector<std::string>& lines,
                                  const std::vector<std::string>& words) {
  std::vector<std::string> found;
  for (const std::string& line : lines) {
    for (const std::string& word : words) {
      if (line.starts_with(word + " ")) found.push_back(line);
    }
  }
  return found;
}

}  // namespace

TEST_CASE("an attention point describes causal attention to cuDNN, operation by operation") {
  const Told called = told("");
  CHECK(called.said == "9.19.0 4096");
  // Values from 7 on are the kernel's own: 7 scores, 8 scaled, 9 row, 10 column, 11 row >= column,
  // 12 masked, 13 shares, 14 maximum, 15 difference, 16 exponentials, 17 sum, 18 its logarithm, 19
  // that and the maximum.
  const auto pointwise = [](int mode, const std::string& rest) {
    return fmt::format("pointwise {} axis {}", mode, rest);
  };
  const std::vector<std::string> expected = {
      "matmul 1 2 to 7",
      pointwise(CUDNN_POINTWISE_MUL, "- of 7 5 - to 8"),
      pointwise(CUDNN_POINTWISE_GEN_INDEX, "2 of 8 - - to 9"),
      pointwise(CUDNN_POINTWISE_GEN_INDEX, "3 of 8 - - to 10"),
      pointwise(CUDNN_POINTWISE_CMP_GE, "- of 9 10 - to 11"),
      pointwise(CUDNN_POINTWISE_BINARY_SELECT, "- of 8 6 11 to 12"),
      fmt::format("reduce {} of 12 to 14", static_cast<int>(CUDNN_REDUCE_TENSOR_MAX)),
      pointwise(CUDNN_POINTWISE_SUB, "- of 12 14 - to 15"),
      pointwise(CUDNN_POINTWISE_EXP, "- of 15 - - to 16"),
      fmt::format("reduce {} of 16 to 17", static_cast<int>(CUDNN_REDUCE_TENSOR_ADD)),
      pointwise(CUDNN_POINTWISE_LOG, "- of 17 - - to 18"),
      pointwise(CUDNN_POINTWISE_ADD, "- of 14 18 - to 19"),
      pointwise(CUDNN_POINTWISE_DIV, "- of 16 17 - to 13"),
      "matmul 13 3 to 4"};
  CHECK(starting(called.lines, {"matmul", "pointwise", "reduce"}) == expected);
  CHECK(starting(called.lines, {"graph"}) == std::vector<std::string>{"graph of 14"});
  // 1 / sqrt(64); the addresses in the order of the names 1 to 4.
  CHECK(starting(called.lines, {"execute"}) ==
        std::vector<std::string>{"execute 1,2,3,4,5,6 workspace 80 16 32 48 64 scale 0.125000"});
  CHECK(called.lines.back() == "handle given back");
}

TEST_CASE("tensors lie as projections write them, keys read transposed") {
  const std::vector<std::string> tensors = starting(told("").lines, {"tensor"});
  REQUIRE(tensors.size() == 19);
  // [2, 256, 8, 64] read as [batch, heads, sequence, head_dim]: a token is 512 elements on, a
  // sequence 131,072; of keys and values, with 2 heads, 128 and 32,768.
  const std::string query = "sizes 2,8,256,64 strides 131072,64,512,1 virtual - by-value -";
  CHECK(tensors[0] ==
        fmt::format("tensor 1 type {} {}", static_cast<int>(CUDNN_DATA_BFLOAT16), query));
  CHECK(tensors[1] == fmt::format("tensor 2 type {} sizes 2,2,64,256 strides 32768,64,1,128 "
                                  "virtual - by-value -",
                                  static_cast<int>(CUDNN_DATA_BFLOAT16)));
  CHECK(tensors[2] == fmt::format("tensor 3 type {} sizes 2,2,256,64 strides 32768,64,128,1 "
                                  "virtual - by-value -",
                                  static_cast<int>(CUDNN_DATA_BFLOAT16)));
  CHECK(tensors[3] ==
        fmt::format("tensor 4 type {} {}", static_cast<int>(CUDNN_DATA_BFLOAT16), query));
  CHECK_THAT(tensors[4], ContainsSubstring("sizes 1,1,1,1") && ContainsSubstring("by-value 1"));
  for (const std::size_t statistic : {13, 16, 17, 18}) {  // one for each query
    CHECK_THAT(tensors[statistic],
               ContainsSubstring("sizes 2,8,256,1 ") && ContainsSubstring("virtual 1"));
  }
  CHECK_THAT(tensors[6], ContainsSubstring("sizes 2,8,256,256") && ContainsSubstring("virtual 1"));
}

TEST_CASE("an engine that refuses gives way to the next, and all of them void the point") {
  const Told second = told("first");
  CHECK(second.said == "9.19.0 4096");
  CHECK(starting(second.lines, {"plan"}) == std::vector<std::string>{"plan refused"});
  const std::string none =
      "cuDNN has no fused attention for this shape: CUDNN_STATUS_NOT_SUPPORTED "
      "(as the stand-in was told)";
  const Told all = told("engines");
  CHECK(all.said == "thrown: " + none);
  CHECK(starting(all.lines, {"plan"}).size() == 4);  // two engines in each of two orders
  CHECK(all.lines.back() == "handle given back");
  CHECK(told("heuristics").said == "thrown: " + none);
}

TEST_CASE("a cuDNN that is missing, old or broken is told apart") {
  CHECK_THAT(in_process("MOESIM_CUDNN_LIBRARY", "/no/such/libcudnn.so", one_call),
             ContainsSubstring("cuDNN is missing") && ContainsSubstring("/no/such/libcudnn.so") &&
                 ContainsSubstring("MOESIM_CUDNN_LIBRARY"));
  CHECK_THAT(in_process("MOESIM_CUDNN_LIBRARY", MOESIM_FAKE_NCCL, one_call),
             ContainsSubstring("cuDNN is too old: it has no"));
  CHECK_THAT(told("version").said, ContainsSubstring("cuDNN 8907 is too old"));
  CHECK_THAT(told("start").said, ContainsSubstring("cuDNN does not start"));
  CHECK_THAT(told("softmax").said, ContainsSubstring("an elementwise operation: CUDNN_STATUS_NOT"));
  CHECK_THAT(told("execute").said, ContainsSubstring("an attention call: CUDNN_STATUS_NOT"));
}

TEST_CASE("a backward pass is five products, and passes every tensor by its name") {
  const std::string log =
      (std::filesystem::temp_directory_path() / ("moesim-cudnn-b" + std::to_string(::getpid())))
          .string();
  std::filesystem::remove(log);
  const std::string said = in_process("MOESIM_CUDNN_LIBRARY", MOESIM_FAKE_CUDNN, [&] {
    ::setenv("FAKE_CUDNN_LOG", log.c_str(), 1);
    const cuda::CudnnHandle handle(nullptr);
    cuda::CudnnAttention attention(shape, handle, cuda::AttentionPass::backward);
    attention.run_backward({at(16), at(32), at(48), at(64), at(80), at(96), at(112), at(128),
                            at(144), at(160), at(176)},
                           at(192));
    return std::string("done");
  });
  CHECK(said == "done");
  std::vector<std::string> lines;
  std::istringstream text(moesim::read_file(log));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  std::filesystem::remove(log);
  // 9 scores; 16 shares, 17 transposed, 18 and 24 gradients of V and K by query head, 19 gradients
  // of shares, 22 of scores, 23 transposed; 25 K as it lies.
  CHECK(starting(lines, {"matmul"}) ==
        std::vector<std::string>{"matmul 1 2 to 9", "matmul 17 1002 to 18", "matmul 1002 3 to 19",
                                 "matmul 23 1 to 24", "matmul 22 25 to 1008"});
  CHECK(starting(lines, {"reshape"}) ==
        std::vector<std::string>{"reshape 16 to 17", "reshape 22 to 23", "reshape 2 to 25"});
  // The gradients of 8 query heads are added in groups of 4.
  CHECK(starting(lines, {"reduce"}) ==
        std::vector<std::string>{
            fmt::format("reduce {} of 7 to 8", int{CUDNN_REDUCE_TENSOR_ADD}),
            fmt::format("reduce {} of 18 to 1005", int{CUDNN_REDUCE_TENSOR_ADD}),
            fmt::format("reduce {} of 24 to 1004", int{CUDNN_REDUCE_TENSOR_ADD})});
  REQUIRE(starting(lines, {"execute"}).size() == 1);
  CHECK_THAT(starting(lines, {"execute"})[0],
             ContainsSubstring("execute 1,2,3,4,5,6,1002,1001,1003,1004,1005,1006,1007,1008 "
                               "workspace 192 16 32 48 64 scale 0.125"));
}
#endif
