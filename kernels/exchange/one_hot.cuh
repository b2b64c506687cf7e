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

}  // namespace moesim::kernels::exchange
