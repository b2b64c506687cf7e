#pragma once

#include "kernels/exchange/rows.cuh"

// The dense masks of the einsum formulation (GShard, Lepikhin et al. 2020), for comparison:
// [tokens, experts * block_rows] with 1, or the weight, where a token has a row, and zeros
// elsewhere. Writes S E C elements to say what the route arrays say in S k'.
namespace moesim::kernels::exchange {

// One warp per token and step of the grid. experts * block_rows elements are whole 16-byte pieces.
template <typename Element>
MOESIM_KERNEL(rows_threads)
fill_one_hot(OneHotArguments in) {
  constexpr int width = vector_elements<Element>;
  const WarpPlace place = grid_warp();
  const std::int64_t columns = static_cast<std::int64_t>(in.map.experts) * in.map.block_rows;
  const std::int64_t pieces = columns / width;
  auto* mask = static_cast<Vector16*>(in.mask);
  for (int token = place.warp; token < in.map.tokens; token += place.warps) {
    const TokenRoutes routes = find_routes(in.map, token, in.weight, nullptr);
    Vector16* to = mask + token * pieces;
    for (std::int64_t first = 0; first < pieces; first += warp_lanes) {
      const std::int64_t piece = first + lane_index();
      float values[width] = {};
      each_row(routes, [&](int choice, std::int32_t row, float weight) {
        const std::int64_t column = row - piece * width;
        MOESIM_UNROLL_ALL
        for (int at = 0; at < width; ++at) {
          if (choice < in.map.choices && column == at) values[at] = weight;
        }
      });
      if (piece < pieces) store_streaming(to + piece, pack<Element>(values));
    }
  }
}

// dL/dw of each route out of the dense gradient of the mask: one thread per token and step.
template <typename Element>
MOESIM_KERNEL(rows_threads)
read_one_hot(MaskGradientArguments in) {
  const std::int64_t columns = static_cast<std::int64_t>(in.map.experts) * in.map.block_rows;
  const auto* mask = static_cast<const Element*>(in.mask);
  const int first = block_index() * block_threads() + thread_index();
  for (int token = first; token < in.map.tokens; token += grid_blocks() * block_threads()) {
    for (int choice = 0; choice < in.map.choices; ++choice) {
      const std::int64_t at = choice * in.map.stride + token;
      const std::int32_t slot = in.map.slot[at];
      const std::int64_t column =
          static_cast<std::int64_t>(in.map.expert[at]) * in.map.block_rows + slot;
      in.upstream[at] = slot < 0 ? 0.0F : to_float(mask[token * columns + column]);
    }
  }
}

}  // namespace moesim::kernels::exchange
