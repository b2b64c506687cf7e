#pragma once

#include "kernels/base/vector.cuh"
#include "kernels/exchange/arguments.hpp"
#include "kernels/routing/route_mass.cuh"

// Permute and combine, one warp per token and step of a persistent grid, so that what a token has
// one of is read or written once: dispatch moves 2 S h + 2 E C h bytes (bf16), combine as many,
// its backward 2 S h + 4 E C h. Padding rows are filled with zeros in the same launch.
namespace moesim::kernels::exchange {

inline constexpr int rows_threads = 256;
inline constexpr int vectors_at_once = 4;  // of a lane in registers: 2 KB a warp

// Combine and its backward take a token's rows in pieces of `piece_vectors` vectors a lane, all
// rows' first pieces, then all rows' second ones, and have `ring_pieces` - 1 of them, 3 KB a warp,
// on their way past the registers, however many rows a token has.
inline constexpr int piece_vectors = 2;
inline constexpr int ring_pieces = 4;
inline constexpr int ring_bytes = ring_pieces * piece_vectors * warp_lanes * 16;  // of a warp

// Shared memory of a block; behind the rings of a backward what each thread has of the products of
// its token's rows.
inline constexpr int combine_shared_bytes = rows_threads / warp_lanes * ring_bytes;
inline constexpr int combine_backward_shared_bytes =
    combine_shared_bytes + rows_threads * 4 * (routing::most_choices + 1);

// What is known of one lane's row of a token; nothing of it is looked at when it is loaded, so that
// a warp can have its next token's on their way.
struct RouteWords {
  std::int32_t expert = 0;
  std::int32_t slot = -1;  // of the IR lane its row
  float weight = 1;
};

MOESIM_DEVICE RouteWords load_routes(const RouteMap& map, int token, const float* weight,
                                     const float* ir_weight) {
  RouteWords words;
  const int lane = lane_index();
  if (token >= map.tokens) return words;
  if (lane < map.choices) {
    const std::int64_t at = lane * map.stride + token;
    words.expert = load_constant(map.expert + at);
    words.slot = load_constant(map.slot + at);
    if (weight != nullptr) words.weight = load_constant(weight + at);
  } else if (lane == map.choices && map.ir_row != nullptr) {
    words.slot = load_constant(map.ir_row + token);
    if (ir_weight != nullptr) words.weight = load_constant(ir_weight + token);
  }
  return words;
}

// The rows of one token: lane c knows that of choice c, lane `choices` the IR row.
struct TokenRoutes {
  std::int32_t row = -1;
  float weight = 0;
  std::uint32_t there = 0;  // lanes that have one
};

MOESIM_DEVICE TokenRoutes find_routes(const RouteMap& map, const RouteWords& words) {
  TokenRoutes routes;
  if (words.slot >= 0) {
    routes.row = (lane_index() < map.choices ? words.expert * map.block_rows : 0) + words.slot;
  }
  routes.weight = words.weight;
  routes.there = ballot(routes.row >= 0);
  return routes;
}

MOESIM_DEVICE TokenRoutes find_routes(const RouteMap& map, int token, const float* weight,
                                      const float* ir_weight) {
  return find_routes(map, load_routes(map, token, weight, ir_weight));
}

MOESIM_DEVICE int lowest_bit(std::uint32_t bits) { return 31 - leading_zeros(bits & (0U - bits)); }
MOESIM_DEVICE int highest_bit(std::uint32_t bits) { return 31 - leading_zeros(bits); }

// Calls `use(choice, row, weight)` for the rows of a token, the IR row last; the same for all
// lanes.
template <typename Use>
MOESIM_DEVICE void each_row(const TokenRoutes& routes, Use&& use) {
  for (std::uint32_t left = routes.there; left != 0; left &= left - 1) {
    const int choice = lowest_bit(left);
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

// Zeros to the rows behind those that are kept, one row of `grid_warps` after the other. A warp
// looks at 32 of its rows at once.
MOESIM_DEVICE void fill_padding(const RouteMap& map, Vector16* rows, int row_vectors) {
  const WarpPlace place = grid_warp();
  const std::int64_t all = static_cast<std::int64_t>(map.experts) * map.block_rows;
  const std::int64_t step = std::int64_t{warp_lanes} * place.warps;
  for (std::int64_t first = place.warp; first < all; first += step) {
    const std::int64_t own = first + std::int64_t{lane_index()} * place.warps;
    bool padding = false;
    if (own < all) {
      const auto row = static_cast<std::uint32_t>(own);  // rows are counted in 32 bits
      const std::uint32_t expert = row / static_cast<std::uint32_t>(map.block_rows);
      const auto slot = static_cast<std::int32_t>(row - expert * map.block_rows);
      padding = slot >= load_constant(map.kept_rows + expert);
    }
    for (std::uint32_t left = ballot(padding); left != 0; left &= left - 1) {
      Vector16* to =
          row_of(rows, first + std::int64_t{lowest_bit(left)} * place.warps, row_vectors);
      for (int at = lane_index(); at < row_vectors; at += warp_lanes) {
        store_streaming(to + at, Vector16{});
      }
    }
  }
}

// This lane's `vectors_at_once` vectors of a row from vector `first` on.
MOESIM_DEVICE void load_piece(Vector16 (&held)[vectors_at_once], const Vector16* from, int first,
                              int row_vectors) {
  MOESIM_UNROLL_ALL
  for (int step = 0; step < vectors_at_once; ++step) {
    const int at = first + step * warp_lanes + lane_index();
    if (at < row_vectors) held[step] = load_constant(from + at);
  }
}

// A token's row to all that it has in experts' blocks; its next piece is loaded before one is
// stored.
MOESIM_DEVICE void copy_token(const DispatchArguments& in, int token, const TokenRoutes& routes) {
  constexpr int span = warp_lanes * vectors_at_once;
  if (routes.there == 0) return;  // the same for all lanes
  const Vector16* from = row_of(static_cast<const Vector16*>(in.tokens), token, in.row_vectors);
  Vector16 held[vectors_at_once];
  load_piece(held, from, 0, in.row_vectors);
  for (int first = 0; first < in.row_vectors; first += span) {
    Vector16 next[vectors_at_once];
    load_piece(next, from, first + span, in.row_vectors);
    each_row(routes, [&](int choice, std::int32_t row, float) {
      auto* rows = static_cast<Vector16*>(choice == in.map.choices ? in.ir_rows : in.rows);
      Vector16* to = row_of(rows, row, in.row_vectors);
      MOESIM_UNROLL_ALL
      for (int step = 0; step < vectors_at_once; ++step) {
        const int at = first + step * warp_lanes + lane_index();
        if (at < in.row_vectors) store_streaming(to + at, held[step]);
      }
    });
    MOESIM_UNROLL_ALL
    for (int step = 0; step < vectors_at_once; ++step) held[step] = next[step];
  }
}

// Tokens to the rows of their experts; any element type. A token's routes are loaded while the one
// before it is copied.
MOESIM_KERNEL(rows_threads)
dispatch_rows(DispatchArguments in) {
  const WarpPlace place = grid_warp();
  RouteWords ahead = load_routes(in.map, place.warp, nullptr, nullptr);
  fill_padding(in.map, static_cast<Vector16*>(in.rows), in.row_vectors);
  for (int token = place.warp; token < in.map.tokens; token += place.warps) {
    const TokenRoutes routes = find_routes(in.map, ahead);
    ahead = load_routes(in.map, token + place.warps, nullptr, nullptr);
    copy_token(in, token, routes);
  }
}

// weigh_routes() and dispatch_rows() in one launch, for routers without IR: `weigh` and the map are
// of the same router.
MOESIM_LARGE_KERNEL(rows_threads)
weigh_and_dispatch_rows(DispatchArguments in, routing::WeighArguments weigh) {
  const WarpPlace place = grid_warp();
  RouteWords ahead = load_routes(in.map, place.warp, weigh.probability, nullptr);
  fill_padding(in.map, static_cast<Vector16*>(in.rows), in.row_vectors);
  for (int token = place.warp; token < in.map.tokens; token += place.warps) {
    const TokenRoutes routes = find_routes(in.map, ahead);
    ahead = load_routes(in.map, token + place.warps, weigh.probability, nullptr);
    const float weight = routing::weigh_lane(weigh, routes.weight, routes.row >= 0);
    if (lane_index() < in.map.choices) {
      weigh.weight[lane_index() * in.map.stride + token] = weight;
    }
    copy_token(in, token, routes);
  }
}

// What a warp reads of one token: rows by the lane that knows them, and with `extra`, last of all,
// a row of a third array: the residual of combine, dL/do of its backward.
struct TokenReads {
  const Vector16* rows;
  const Vector16* ir_rows;
  const Vector16* extra;  // that row's begin; null: none
  TokenRoutes routes;
  int choices;
  int row_vectors;
  std::uint32_t lanes;  // routes.there, and choices + 1 for `extra`

  MOESIM_DEVICE const Vector16* source(int lane) const {
    const std::int32_t row = shuffle(routes.row, lane);
    if (lane > choices) return extra;
    return row_of(lane == choices ? ir_rows : rows, row, row_vectors);
  }
};

// Where a warp is in what it reads: the first piece of each row, the second of each, ... Rows in
// the order of their lanes, or against it.
template <bool upwards>
struct PieceCursor {
  std::uint32_t lanes;
  std::uint32_t left;
  int first = 0;  // vector of the row where the piece begins

  MOESIM_DEVICE explicit PieceCursor(std::uint32_t all) : lanes(all), left(all) {}
  MOESIM_DEVICE int lane() const { return upwards ? lowest_bit(left) : highest_bit(left); }
  MOESIM_DEVICE bool last_row() const { return (left & (left - 1)) == 0; }
  MOESIM_DEVICE void advance() {
    left = upwards ? left & (left - 1) : left & ~(1U << highest_bit(left));
    if (left != 0) return;
    left = lanes;
    first += piece_vectors * warp_lanes;
  }
};

// Calls `use(lane, first, last_row, vectors)` for each piece of what a token's warp reads; the same
// for all lanes but for the vectors, those of this lane, undefined behind the row's end. Each lane
// reads from the ring what it has copied there itself.
template <bool upwards, typename Use>
MOESIM_DEVICE void each_piece(const TokenReads& reads, Use&& use) {
  constexpr int piece = piece_vectors * warp_lanes;
  auto* ring = reinterpret_cast<Vector16*>(shared_memory() + warp_index() * ring_bytes);
  PieceCursor<upwards> load(reads.lanes);
  PieceCursor<upwards> take(reads.lanes);
  const auto load_next = [&](std::uint32_t place) {
    if (load.first < reads.row_vectors) {
      const Vector16* from = reads.source(load.lane());
      MOESIM_UNROLL_ALL
      for (int step = 0; step < piece_vectors; ++step) {
        const int at = step * warp_lanes + lane_index();
        if (load.first + at < reads.row_vectors) {
          copy_async_16(ring + place * piece + at, from + load.first + at, true);
        }
      }
      load.advance();
    }
    commit_copies();
  };
  MOESIM_UNROLL_ALL
  for (std::uint32_t place = 0; place < ring_pieces - 1; ++place) load_next(place);
  for (std::uint32_t place = 0; take.first < reads.row_vectors; place = (place + 1) % ring_pieces) {
    wait_for_copies<ring_pieces - 2>();
    Vector16 held[piece_vectors];
    MOESIM_UNROLL_ALL
    for (int step = 0; step < piece_vectors; ++step) {
      held[step] = ring[place * piece + step * warp_lanes + lane_index()];
    }
    // The place of the piece before this one, which is in registers by now.
    load_next((place + ring_pieces - 1) % ring_pieces);
    use(take.lane(), take.first, take.last_row(), held);
    take.advance();
  }
  wait_for_copies<0>();
}

// o = sum of w row over a token's rows, in choice order, then the IR row, then the residual; sums
// in fp32. Without weights it is the backward of dispatch. combine_shared_bytes of shared memory.
template <typename Element>
MOESIM_KERNEL(rows_threads)
combine_rows(CombineArguments in) {
  constexpr int width = vector_elements<Element>;
  const WarpPlace place = grid_warp();
  const auto* residual = static_cast<const Vector16*>(in.residual);
  auto* out = static_cast<Vector16*>(in.out);
  RouteWords ahead = load_routes(in.map, place.warp, in.weight, in.ir_weight);
  for (int token = place.warp; token < in.map.tokens; token += place.warps) {
    TokenReads reads{static_cast<const Vector16*>(in.rows),
                     static_cast<const Vector16*>(in.ir_rows),
                     residual == nullptr ? nullptr : row_of(residual, token, in.row_vectors),
                     find_routes(in.map, ahead),
                     in.map.choices,
                     in.row_vectors,
                     0};
    ahead = load_routes(in.map, token + place.warps, in.weight, in.ir_weight);
    reads.lanes = reads.routes.there | (residual == nullptr ? 0 : 2U << in.map.choices);
    Vector16* to = row_of(out, token, in.row_vectors);
    if (reads.lanes == 0) {  // the same for all lanes
      for (int at = lane_index(); at < in.row_vectors; at += warp_lanes) {
        store_streaming(to + at, Vector16{});
      }
      continue;
    }
    float sum[piece_vectors][width] = {};
    each_piece<true>(reads,
                     [&](int lane, int first, bool last_row, const Vector16(&held)[piece_vectors]) {
                       const float known = shuffle(reads.routes.weight, lane);
                       const float weight = lane > in.map.choices ? 1.0F : known;
                       MOESIM_UNROLL_ALL
                       for (int step = 0; step < piece_vectors; ++step) {
                         float values[width];
                         unpack<Element>(held[step], values);
                         MOESIM_UNROLL_ALL
                         for (int at = 0; at < width; ++at) {
                           sum[step][at] = multiply_add(weight, values[at], sum[step][at]);
                         }
                       }
                       if (!last_row) return;
                       MOESIM_UNROLL_ALL
                       for (int step = 0; step < piece_vectors; ++step) {
                         const int at = first + step * warp_lanes + lane_index();
                         if (at < in.row_vectors)
                           store_streaming(to + at, pack<Element>(sum[step]));
                         MOESIM_UNROLL_ALL
                         for (int element = 0; element < width; ++element) sum[step][element] = 0;
                       }
                     });
  }
}

// dL/drow = w dL/do, and u = <dL/do, row>, which the router's backward needs; dL/do is read once.
// combine_backward_shared_bytes of shared memory.
template <typename Element>
MOESIM_KERNEL(rows_threads)
combine_rows_backward(CombineBackwardArguments in) {
  constexpr int width = vector_elements<Element>;
  const WarpPlace place = grid_warp();
  const auto* gradient = static_cast<const Vector16*>(in.gradient);
  auto* row_gradient = static_cast<Vector16*>(in.row_gradient);
  auto* ir_row_gradient = static_cast<Vector16*>(in.ir_row_gradient);
  // [choice, thread]: what this lane has of the products of each row; IR last.
  auto* products =
      reinterpret_cast<float*>(shared_memory() + combine_shared_bytes) + thread_index();
  RouteWords ahead = load_routes(in.map, place.warp, in.weight, in.ir_weight);
  fill_padding(in.map, row_gradient, in.row_vectors);
  for (int token = place.warp; token < in.map.tokens; token += place.warps) {
    TokenReads reads{static_cast<const Vector16*>(in.rows),
                     static_cast<const Vector16*>(in.ir_rows),
                     row_of(gradient, token, in.row_vectors),
                     find_routes(in.map, ahead),
                     in.map.choices,
                     in.row_vectors,
                     0};
    ahead = load_routes(in.map, token + place.warps, in.weight, in.ir_weight);
    float own_upstream = 0;         // of this lane's choice
    if (reads.routes.there != 0) {  // the same for all lanes
      reads.lanes = reads.routes.there | 2U << in.map.choices;
      Vector16 given[piece_vectors];  // dL/do, the first of each piece
      each_piece<false>(
          reads, [&](int lane, int first, bool, const Vector16(&held)[piece_vectors]) {
            if (lane > in.map.choices) {
              MOESIM_UNROLL_ALL
              for (int step = 0; step < piece_vectors; ++step) given[step] = held[step];
              return;
            }
            const float weight = shuffle(reads.routes.weight, lane);
            const std::int32_t row = shuffle(reads.routes.row, lane);
            Vector16* to = row_of(lane == in.map.choices ? ir_row_gradient : row_gradient, row,
                                  in.row_vectors);
            float product = first == 0 ? 0.0F : products[lane * rows_threads];
            MOESIM_UNROLL_ALL
            for (int step = 0; step < piece_vectors; ++step) {
              const int at = first + step * warp_lanes + lane_index();
              if (at >= in.row_vectors) continue;
              float left[width], right[width];
              unpack<Element>(given[step], left);
              unpack<Element>(held[step], right);
              MOESIM_UNROLL_ALL
              for (int element = 0; element < width; ++element) {
                product = multiply_add(left[element], right[element], product);
                left[element] *= weight;
              }
              store_streaming(to + at, pack<Element>(left));
            }
            products[lane * rows_threads] = product;
          });
      each_row(reads.routes, [&](int choice, std::int32_t, float) {
        float product = products[choice * rows_threads];
        for (int mask = warp_lanes / 2; mask > 0; mask /= 2) product += shuffle_xor(product, mask);
        if (lane_index() == choice) own_upstream = product;
      });
    }
    if (lane_index() < in.map.choices) {
      in.upstream[lane_index() * in.map.stride + token] = own_upstream;
    } else if (lane_index() == in.map.choices && in.ir_upstream != nullptr) {
      in.ir_upstream[token] = own_upstream;
    }
  }
}

}  // namespace moesim::kernels::exchange
