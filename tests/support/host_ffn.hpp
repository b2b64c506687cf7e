#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/base/bfloat16.cuh"
#include "kernels/experts/ffn.hpp"
#include "kernels/experts/swiglu.cuh"
#include "tests/support/simt/executor.hpp"

// A GPU's part of a grouped FFN on the host: products by the very arguments that cuBLAS would get,
// read column-major as cuBLAS reads them; activations by the kernels' own sources.
namespace moesim::kernels::testing {

// c = op(a) op(b) + beta c with bf16 a and b, sums in fp64, c rounded to bf16 or fp32.
inline void host_cublas(const CublasGemm& in, const void* a, const void* b, float beta, void* c,
                        bool wide) {
  const auto* left = static_cast<const Bfloat16*>(a);
  const auto* right = static_cast<const Bfloat16*>(b);
  const auto place = [](std::int64_t row, std::int64_t column, int rows) {
    return row + column * rows;
  };
  for (int column = 0; column < in.n; ++column) {
    for (int row = 0; row < in.m; ++row) {
      double sum = 0;
      for (int k = 0; k < in.k; ++k) {
        const auto from_a = in.a_transposed ? place(k, row, in.a_rows) : place(row, k, in.a_rows);
        const auto from_b =
            in.b_transposed ? place(column, k, in.b_rows) : place(k, column, in.b_rows);
        sum += static_cast<double>(to_float(left[from_a]) * to_float(right[from_b]));
      }
      const auto to = place(row, column, in.c_rows);
      if (wide) {
        auto* out = static_cast<float*>(c) + to;
        *out = static_cast<float>(sum) + (beta != 0 ? beta * *out : 0.0F);
      } else {
        auto* out = static_cast<Bfloat16*>(c) + to;
        *out = to_bfloat16(static_cast<float>(sum) + (beta != 0 ? beta * to_float(*out) : 0.0F));
      }
    }
  }
}

inline void host_gemm(const Gemm& gemm, const void* left, const void* right, void* result) {
  host_cublas(column_major(gemm), right, left, gemm.accumulates ? 1.0F : 0.0F, result, gemm.wide);
}

class HostFfn : public experts::FfnBackend {
 public:
  void multiply(const experts::ExpertGemm& call, const experts::FfnTensors& tensors) override {
    if (call.form != experts::GemmForm::strided_batched) {
      for (const experts::GemmBlock& block : call.blocks) one(call, block, tensors);
      return;
    }
    const GemmBatch batch = call.batch();
    for (std::int64_t at = 0; at < batch.count; ++at) {
      experts::GemmBlock block = call.blocks.front();
      block.left += at * batch.left_stride;
      block.right += at * batch.right_stride;
      block.result += at * batch.result_stride;
      one(call, block, tensors);
    }
  }
  void activate(const experts::SwigluArguments& in) override {
    simt::launch({3, experts::swiglu_threads, 0}, [&] { experts::swiglu(in); });
  }
  void activate_backward(const experts::SwigluBackwardArguments& in) override {
    simt::launch({3, experts::swiglu_threads, 0}, [&] { experts::swiglu_backward(in); });
  }
  void clear(void* memory, std::size_t bytes) override { std::memset(memory, 0, bytes); }

 private:
  static void one(const experts::ExpertGemm& call, const experts::GemmBlock& block,
                  const experts::FfnTensors& tensors) {
    host_gemm(block.gemm, tensors.element(call.left, block.left),
              tensors.element(call.right, block.right), tensors.element(call.result, block.result));
  }
};

}  // namespace moesim::kernels::testing
