#include "kernels/routing/launch.hpp"

#include <stdexcept>
#include <string>

#include "kernels/base/cuda_check.hpp"
#include "kernels/base/launch_limits.hpp"
#include "kernels/base/nvtx.hpp"
#include "kernels/routing/assign.cuh"
#include "kernels/routing/backward.cuh"
#include "kernels/routing/choose.cuh"
#include "kernels/routing/gate.cuh"
#include "kernels/routing/weigh.cuh"

namespace moesim::kernels::routing {

namespace {

unsigned blocks_for(std::int64_t threads, int per_block) {
  return static_cast<unsigned>((threads + per_block - 1) / per_block);
}

template <int width, bool large>
void launch_tiled(const GateArguments& in, Stream stream) {
  constexpr int bytes = GateShape<width, large>::shared_bytes;
  allow_shared_memory(reinterpret_cast<const void*>(gate_bfloat16<width, large>), bytes);
  const unsigned tiles = blocks_for(in.choose.experts, width);
  const unsigned blocks = blocks_for(in.choose.tokens, gate_tokens) * tiles;
  gate_bfloat16<width, large><<<blocks, gate_threads, bytes, stream>>>(in);
  MOESIM_CUDA(cudaGetLastError());
  if (tiles > 1) launch_choose(in.choose, stream);
}

}  // namespace

void launch_gate(const GateArguments& in, bool bfloat16, Stream stream) {
  const NvtxRange range("gate");
  const int tokens = in.choose.tokens;
  const int experts = in.choose.experts;
  if (tokens == 0) return;
  if (!bfloat16) {
    const unsigned blocks = blocks_for(tokens, plain_tile) * blocks_for(experts, plain_tile);
    gate_float32<<<blocks, gate_threads, gate_float32_shared, stream>>>(in);
    MOESIM_CUDA(cudaGetLastError());
    return launch_choose(in.choose, stream);
  }
  if (in.hidden < 8 || in.hidden % 8 != 0) {
    throw std::invalid_argument("a hidden size of " + std::to_string(in.hidden) +
                                ": the bf16 gate takes multiples of 8");
  }
  with_gate_tile(experts, [&](auto tile) {
    constexpr int width = decltype(tile)::value;
    if (block_shared_memory() >= GateShape<width, true>::shared_bytes) {
      launch_tiled<width, true>(in, stream);
    } else {
      launch_tiled<width, false>(in, stream);
    }
  });
}

void launch_choose(const ChooseArguments& in, Stream stream) {
  const NvtxRange range("choose");
  if (in.tokens == 0) return;
  with_layout(in.experts, [&](auto lanes, auto values) {
    constexpr int width = decltype(lanes)::value;
    const unsigned blocks = blocks_for(std::int64_t{in.tokens} * width, choose_threads);
    constexpr int held = decltype(values)::value;
    choose_experts<width, held>
        <<<blocks, choose_threads, choose_shared_bytes<held>(), stream>>>(in);
  });
  MOESIM_CUDA(cudaGetLastError());
}

void launch_assign(const AssignArguments& in, Stream stream) {
  const NvtxRange range("assign");
  if (in.tile_begin != nullptr) {
    const std::size_t bytes = sort_shared_bytes(in.experts);
    const int tiles = tiles_of_choice(in.tokens) * in.choices;
    sort_tile<<<static_cast<unsigned>(tiles), tile_tokens, bytes, stream>>>(in);
    MOESIM_CUDA(cudaGetLastError());
  }
  const std::size_t bytes = assign_shared_bytes(in.tokens, in.choices, in.buffered_keys);
  allow_shared_memory(reinterpret_cast<const void*>(assign_capacity), bytes);
  assign_capacity<<<static_cast<unsigned>(in.experts), assign_threads, bytes, stream>>>(in);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_weigh(const WeighArguments& in, Stream stream) {
  const NvtxRange range("weigh");
  if (in.tokens == 0) return;
  weigh_routes<<<blocks_for(in.tokens, weigh_threads), weigh_threads, 0, stream>>>(in);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_collect(const CollectArguments& in, Stream stream) {
  const NvtxRange range("collect IR rows");
  const auto blocks = static_cast<unsigned>(in.local_last - in.local_first);
  collect_ir_rows<<<blocks, collect_threads, scan_words * 4, stream>>>(in);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_backward(const BackwardArguments& in, Stream stream) {
  const NvtxRange range("router backward");
  if (in.tokens == 0) return;
  with_layout(in.experts, [&](auto lanes, auto values) {
    constexpr int width = decltype(lanes)::value;
    const unsigned blocks = blocks_for(std::int64_t{in.tokens} * width, backward_threads);
    route_backward<width, decltype(values)::value><<<blocks, backward_threads, 0, stream>>>(in);
  });
  MOESIM_CUDA(cudaGetLastError());
}

}  // namespace moesim::kernels::routing
