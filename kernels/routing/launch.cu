#include "kernels/routing/launch.hpp"

#include "kernels/base/cuda_check.hpp"
#include "kernels/routing/assign.cuh"
#include "kernels/routing/backward.cuh"
#include "kernels/routing/choose.cuh"
#include "kernels/routing/weigh.cuh"

namespace moesim::kernels::routing {

namespace {

unsigned blocks_for(std::int64_t threads, int per_block) {
  return static_cast<unsigned>((threads + per_block - 1) / per_block);
}

}  // namespace

void launch_choose(const ChooseArguments& in, Stream stream) {
  if (in.tokens == 0) return;
  with_layout(in.experts, [&](auto lanes, auto values) {
    constexpr int width = decltype(lanes)::value;
    const unsigned blocks = blocks_for(std::int64_t{in.tokens} * width, choose_threads);
    choose_experts<width, decltype(values)::value><<<blocks, choose_threads, 0, stream>>>(in);
  });
  MOESIM_CUDA(cudaGetLastError());
}

void launch_assign(const AssignArguments& in, Stream stream) {
  const std::size_t bytes = assign_shared_bytes(in.tokens, in.choices, in.buffered_keys);
  MOESIM_CUDA(cudaFuncSetAttribute(assign_capacity, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(bytes)));
  assign_capacity<<<static_cast<unsigned>(in.experts), assign_threads, bytes, stream>>>(in);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_weigh(const WeighArguments& in, Stream stream) {
  if (in.tokens == 0) return;
  weigh_routes<<<blocks_for(in.tokens, weigh_threads), weigh_threads, 0, stream>>>(in);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_collect(const CollectArguments& in, Stream stream) {
  const auto blocks = static_cast<unsigned>(in.local_last - in.local_first);
  collect_ir_rows<<<blocks, collect_threads, scan_words * 4, stream>>>(in);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_backward(const BackwardArguments& in, Stream stream) {
  if (in.tokens == 0) return;
  with_layout(in.experts, [&](auto lanes, auto values) {
    constexpr int width = decltype(lanes)::value;
    const unsigned blocks = blocks_for(std::int64_t{in.tokens} * width, backward_threads);
    route_backward<width, decltype(values)::value><<<blocks, backward_threads, 0, stream>>>(in);
  });
  MOESIM_CUDA(cudaGetLastError());
}

}  // namespace moesim::kernels::routing
