#pragma once

#include "kernels/base/vector.cuh"
#include "kernels/exchange/arguments.hpp"

// Permute and combine, one warp per token and step of a persistent grid, so that what a token has
// one of is read or written once: dispatch moves 2 S h + 2 E C h bytes (bf16), combine as many,
// its backward 2 S h + 4 E C h. Padding rows are filled with zeros in the same launch.
namespace moesim::kernels::exchange {

inline constexpr int rows_threads = 256;
inline constexpr int vectors_at_once = 4;  // of a lane: 2 KB a warp in flight

// The rows of one token: lane c knows that of choice c, lane `choices` the IR row.
struct TokenRoutes {
  std::int32_t row = -1;
  float weight = 0;
  std::uint32_t there = 0;  // lanes that have one
};

MOESIM_DEVICE TokenRoutes find_routes(const RouteMap& map, int token, const float* weight,
                                      const float* ir_weight) {
  TokenRoutes routes;
  const int lane = lane_index();
  if (lane < map.choices) {
    const std::int64_t at = lane * map.stride + token;
    const std::int32_t slot = load_constant(map.slot + at);
    if (slot >= 0) routes.row = load_constant(map.expert + at) * map.block_rows + slot;
    routes.weight = weight != nullptr ? load_constant(weight + at) : 1.0F;
  } else if (lane == map.choices && map.ir_row != nullptr) {
    routes.row = load_constant(map.ir_row + token);
    routes.weight = ir_weight != nullptr ? load_constant(ir_weight + token) : 1.0F;
  }
  routes.there = ballot(routes.row >= 0);
  return routes;
}

// Calls `use(choice, row, weight)` for the rows of a token, the IR row last; the same for all
// lanes.
template <typename Use>
MOESIM_DEVICE void each_row(const TokenRoutes& routes, Use&& use) {
  for (std::uint32_t left = routes.there; left != 0; left &= left - 1) {
    const int choice = 31 - leading_zeros(left & (0U - left));
    const std::int32_t row = shuffle(routes.row, choice);
    const float weight = shuffle(routes.weight, choice);
    use(choice, row, weight);
  }
}

template <typename Vector>
MOESIM_DEVICE Vector* row_of(Vector* rows, std::int64_t row, int row_vectors) {
  return rows + row * row_vectors;
}

struct WarpPlace {
  int warp;
  int warps;
};

MOESIM_DEVICE WarpPlace grid_warp() {
  const int per_block = block_threads() / warp_lanes;
  return {block_index() * per_block + warp_index(), grid_blocks() * per_block};
}

MOESIM_DEVICE void fill_padding(const RouteMap& map, Vector16* rows, int row_vectors) {
  const WarpPlace place = grid_warp();
  const std::int64_t all = static_cast<std::int64_t>(map.experts) * map.block_rows;
  for (std::int64_t row = place.warp; row < all; row += place.warps) {
    const int expert = static_cast<int>(row / map.block_rows);
    if (row - static_cast<std::int64_t>(expert) * map.block_rows <
        load_constant(map.kept_rows + expert)) {
      continue;
    }
    Vector16* to = row_of(rows, row, row_vectors);
    for (int at = lane_index(); at < row_vectors; at += warp_lanes) {
      store_streaming(to + at, Vector16{});
    }
  }
}

// Tokens to the rows of their experts; any element type.
MOESIM_KERNEL(rows_threads)
dispatch_rows(DispatchArguments in) {
  const WarpPlace place = grid_warp();
  const auto* tokens = static_cast<const Vector16*>(in.tokens);
  auto* rows = static_cast<Vector16*>(in.rows);
  auto* ir_rows = static_cast<Vector16*>(in.ir_rows);
  for (int token = place.warp; token < in.map.tokens; token += place.warps) {
    const TokenRoutes routes = find_routes(in.map, token, nullptr, nullptr);
    if (routes.there == 0) continue;  // the same for all lanes
    const Vector16* from = row_of(tokens, token, in.row_vectors);
    for (int first = 0; first < in.row_vectors; first += warp_lanes * vectors_at_once) {
      Vector16 held[vectors_at_once];
      for (int step = 0; step < vectors_at_once; ++step) {
        const int at = first + step * warp_lanes + lane_index();
        if (at < in.row_vectors) held[step] = load_constant(from + at);
      }
      each_row(routes, [&](int choice, std::int32_t row, float) {
        Vector16* to = row_of(choice == in.map.choices ? ir_rows : rows, row, in.row_vectors);
        for (int step = 0; step < vectors_at_once; ++step) {
          const int at = first + step * warp_lanes + lane_index();
          if (at < in.row_vectors) store_streaming(to + at, held[step]);
        }
      });
    }
  }
  fill_padding(in.map, rows, in.row_vectors);
}

// o = sum of w row over a token's rows, in choice order, then the IR row, then the residual; sums
// in fp32. Without weights it is the backward of dispatch.
template <typename Element>
MOESIM_KERNEL(rows_threads)
combine_rows(CombineArguments in) {
  constexpr int width = vector_elements<Element>;
  const WarpPlace place = grid_warp();
  const auto* rows = static_cast<const Vector16*>(in.rows);
  const auto* ir_rows = static_cast<const Vector16*>(in.ir_rows);
  const auto* residual = static_cast<const Vector16*>(in.residual);
  auto* out = static_cast<Vector16*>(in.out);
  for (int token = place.warp; token < in.map.tokens; token += place.warps) {
    const TokenRoutes routes = find_routes(in.map, token, in.weight, in.ir_weight);
    for (int first = 0; first < in.row_vectors; first += warp_lanes * vectors_at_once) {
      float sum[vectors_at_once][width] = {};
      const auto add = [&](const Vector16* from, float weight) {
        Vector16 held[vectors_at_once];
        for (int step = 0; step < vectors_at_once; ++step) {
          const int at = first + step * warp_lanes + lane_index();
          held[step] = at < in.row_vectors ? load_constant(from + at) : Vector16{};
        }
        for (int step = 0; step < vectors_at_once; ++step) {
          float values[width];
          unpack<Element>(held[step], values);
          for (int at = 0; at < width; ++at) {
            sum[step][at] = multiply_add(weight, values[at], sum[step][at]);
          }
        }
      };
      each_row(routes, [&](int choice, std::int32_t row, float weight) {
        add(row_of(choice == in.map.choices ? ir_rows : rows, row, in.row_vectors), weight);
      });
      if (residual != nullptr) add(row_of(residual, token, in.row_vectors), 1.0F);
      Vector16* to = row_of(out, token, in.row_vectors);
      for (int step = 0; step < vectors_at_once; ++step) {
        const int at = first + step * warp_lanes + lane_index();
        if (at < in.row_vectors) store_streaming(to + at, pack<Element>(sum[step]));
      }
    }
  }
}

// dL/drow = w dL/do, and u = <dL/do, row>, which the router's backward needs. dL/do is read once
// per row of a token, from cache after the first.
template <typename Element>
MOESIM_KERNEL(rows_threads)
combine_rows_backward(CombineBackwardArguments in) {
  constexpr int width = vector_elements<Element>;
  const WarpPlace place = grid_warp();
  const auto* rows = static_cast<const Vector16*>(in.rows);
  const auto* ir_rows = static_cast<const Vector16*>(in.ir_rows);
  const auto* gradient = static_cast<const Vector16*>(in.gradient);
  auto* row_gradient = static_cast<Vector16*>(in.row_gradient);
  auto* ir_row_gradient = static_cast<Vector16*>(in.ir_row_gradient);
  for (int token = place.warp; token < in.map.tokens; token += place.warps) {
    const TokenRoutes routes = find_routes(in.map, token, in.weight, in.ir_weight);
    const Vector16* from = row_of(gradient, token, in.row_vectors);
    float own_upstream = 0;  // of this lane's choice
    each_row(routes, [&](int choice, std::int32_t row, float weight) {
      const bool ir = choice == in.map.choices;
      const Vector16* value = row_of(ir ? ir_rows : rows, row, in.row_vectors);
      Vector16* to = row_of(ir ? ir_row_gradient : row_gradient, row, in.row_vectors);
      float product = 0;
      MOESIM_UNROLL(4)
      for (int at = lane_index(); at < in.row_vectors; at += warp_lanes) {
        float left[width], right[width];
        unpack<Element>(load_constant(from + at), left);
        unpack<Element>(load_constant(value + at), right);
        for (int element = 0; element < width; ++element) {
          product = multiply_add(left[element], right[element], product);
          left[element] *= weight;
        }
        store_streaming(to + at, pack<Element>(left));
      }
      for (int mask = warp_lanes / 2; mask > 0; mask /= 2) product += shuffle_xor(product, mask);
      if (lane_index() == choice) own_upstream = product;
    });
    if (lane_index() < in.map.choices) {
      in.upstream[lane_index() * in.map.stride + token] = own_upstream;
    } else if (lane_index() == in.map.choices && in.ir_upstream != nullptr) {
      in.ir_upstream[token] = own_upstream;
    }
  }
  fill_padding(in.map, row_gradient, in.row_vectors);
}

}  // namespace moesim::kernels::exchange
