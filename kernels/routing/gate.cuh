#pragma once

#include <cstddef>

#include "kernels/base/bfloat16.cuh"
#include "kernels/base/block.cuh"
#include "kernels/routing/choose.cuh"

// The router GEMM on tensor cores (mma.sync m16n8k16, bf16 in, fp32 sums), softmax and top-k' on
// its accumulators. x is read once: a block takes 128 tokens and all experts (up to 128, as one
// tile; more experts are several tiles and a launch of choose_experts). The floor is the 2 S h
// bytes of x, 28 us at S = 16,384, h = 4,096 and 4.8 TB/s: so what counts is bytes in flight. Six
// stages of 24 KB (E = 64) are kept coming by asynchronous copies; 128 blocks fill an H200's 132
// processors once.
//
// Eight warps: four times 32 tokens, and two halves of each stage's 64 hidden elements. 32 tokens a
// warp halve the shared-memory reads of W; the two halves are added at the end in a fixed order.
// Rows of a stage are 128 bytes; their 16-byte pieces are permuted by the row, so that the eight
// rows of a matrix lie in different banks.
namespace moesim::kernels::routing {

inline constexpr int gate_threads = 256;
inline constexpr int gate_tokens = 128;  // of a block
inline constexpr int gate_depth = 64;    // hidden elements of a stage
inline constexpr int gate_pieces = gate_depth / 8;

template <int tile_experts>
struct GateShape {
  static constexpr int stages = tile_experts > 64 ? 4 : 6;
  static constexpr int rows = gate_tokens + tile_experts;  // of a stage
  static constexpr int stage_bytes = rows * gate_depth * 2;
  static constexpr int logit_stride = tile_experts + 8;
  static constexpr int logit_bytes = gate_tokens * logit_stride * 4;
  static constexpr int shared_bytes =
      stages * stage_bytes > logit_bytes ? stages* stage_bytes : logit_bytes;
  static constexpr int lanes = tile_experts < 32 ? tile_experts : 32;  // for many choices
};

// The 16-byte piece `piece` of row `row` of a stage.
MOESIM_DEVICE unsigned char* gate_piece(unsigned char* stage, int row, int piece) {
  return stage + (row * gate_pieces + (piece ^ row % 8)) * 16;
}

// What this thread copies of every stage: piece `thread % 8` of row `thread / 8` and of each 32nd
// row below it. Rows and places are the same in all stages, so that they are worked out once; a
// stage then costs one comparison, and for each of its 16-byte copies two or three instructions.
template <int tile_experts>
struct StageCopier {
  using Shape = GateShape<tile_experts>;
  static constexpr int rows_at_once = gate_threads / gate_pieces;
  static constexpr int copies = (Shape::rows + rows_at_once - 1) / rows_at_once;
  static_assert(gate_tokens % rows_at_once == 0 && rows_at_once % 8 == 0);

  const Bfloat16* row[copies];  // of hidden element `column` of stage 0; of the first row if none
  std::uint32_t there = 0;      // a bit for each copy: whether its token or expert exists
  int column = 0;
  int hidden = 0;
  int place = 0;  // of the first copy, bytes from the stage's begin

  MOESIM_DEVICE StageCopier(const GateArguments& in, int first_token, int first_expert)
      : column(thread_index() % gate_pieces * 8), hidden(in.hidden) {
    const int first = thread_index() / gate_pieces;
    place = (first * gate_pieces + (thread_index() % gate_pieces ^ first % 8)) * 16;
    MOESIM_UNROLL_ALL
    for (int copy = 0; copy < copies; ++copy) {
      const bool is_token = copy < gate_tokens / rows_at_once;
      const int index =
          copy * rows_at_once + first + (is_token ? first_token : first_expert - gate_tokens);
      const bool exists = index < (is_token ? in.choose.tokens : in.choose.experts);
      row[copy] = static_cast<const Bfloat16*>(is_token ? in.tokens : in.weights) +
                  static_cast<std::int64_t>(exists ? index : 0) * hidden;
      there |= (exists ? 1U : 0U) << copy;
    }
  }

  // Hidden elements [step * gate_depth, ... + gate_depth) to `stage`, zeros where there are none.
  MOESIM_DEVICE void copy(unsigned char* stage, int step) const {
    const int from = step * gate_depth + column;
    const bool inside = from < hidden;
    const std::uint32_t valid = inside ? there : 0;
    const int offset = inside ? from : 0;
    MOESIM_UNROLL_ALL
    for (int copy = 0; copy < copies; ++copy) {
      constexpr bool whole = Shape::rows % rows_at_once == 0;
      if (!whole && copy == copies - 1 &&
          thread_index() / gate_pieces >= Shape::rows % rows_at_once) {
        break;
      }
      copy_async_16(stage + place + copy * rows_at_once * gate_pieces * 16, row[copy] + offset,
                    (valid >> copy & 1U) != 0);
    }
  }
};

// This warp's half of a stage: two steps of 16 hidden elements.
template <int tile_experts>
MOESIM_DEVICE void multiply_stage(unsigned char* stage, float (&sum)[2][tile_experts / 8][4]) {
  const int lane = lane_index();
  const int token_rows = warp_index() % 4 * 32;
  const int half = warp_index() / 4;
  MOESIM_UNROLL_ALL
  for (int step = 0; step < 2; ++step) {
    const int piece = half * 4 + step * 2;
    std::uint32_t a[2][4];
    MOESIM_UNROLL_ALL
    for (int part = 0; part < 2; ++part) {
      load_matrices(a[part],
                    gate_piece(stage, token_rows + part * 16 + lane % 16, piece + lane / 16));
    }
    MOESIM_UNROLL_ALL
    for (int pair = 0; pair < tile_experts / 16; ++pair) {
      std::uint32_t b[4];
      const int row = gate_tokens + pair * 16 + lane / 16 * 8 + lane % 8;
      load_matrices(b, gate_piece(stage, row, piece + lane / 8 % 2));
      const std::uint32_t first[2] = {b[0], b[1]};
      const std::uint32_t second[2] = {b[2], b[3]};
      MOESIM_UNROLL_ALL
      for (int part = 0; part < 2; ++part) {
        multiply_matrices(sum[part][2 * pair], a[part], first);
        multiply_matrices(sum[part][2 * pair + 1], a[part], second);
      }
    }
  }
}

// Both halves' sums to one array of logits in shared memory, [gate_tokens, logit_stride].
template <int tile_experts>
MOESIM_DEVICE void join_halves(const float (&sum)[2][tile_experts / 8][4], float* logits) {
  constexpr int stride = GateShape<tile_experts>::logit_stride;
  const int lane = lane_index();
  for (int half = 1; half >= 0; --half) {
    sync_block();
    if (warp_index() / 4 != half) continue;  // the same for all lanes
    MOESIM_UNROLL_ALL
    for (int part = 0; part < 2; ++part) {
      MOESIM_UNROLL_ALL
      for (int block = 0; block < tile_experts / 8; ++block) {
        MOESIM_UNROLL_ALL
        for (int value = 0; value < 4; ++value) {
          const int token = warp_index() % 4 * 32 + part * 16 + lane / 4 + value / 2 * 8;
          float& to = logits[token * stride + block * 8 + lane % 4 * 2 + value % 2];
          to = half == 1 ? sum[part][block][value] : sum[part][block][value] + to;
        }
      }
    }
  }
  sync_block();
}

template <int tile_experts>
MOESIM_DEVICE void write_logits(const GateArguments& in, const float* logits, int first_token,
                                int first_expert) {
  constexpr int stride = GateShape<tile_experts>::logit_stride;
  const int experts = in.choose.experts - first_expert;
  const int width = experts < tile_experts ? experts : tile_experts;
  for (int row = warp_index(); row < gate_tokens; row += gate_threads / warp_lanes) {
    if (first_token + row >= in.choose.tokens) break;
    float* to =
        in.logits + static_cast<std::int64_t>(first_token + row) * in.choose.experts + first_expert;
    for (int expert = lane_index(); expert < width; expert += warp_lanes) {
      to[expert] = logits[row * stride + expert];
    }
  }
}

// Each warp chooses for its 16 tokens, 32 / lanes of them at once: eight lanes a token, so that the
// warp is done in four rounds, unless more choices are wanted.
template <int tile_experts, int lanes>
MOESIM_DEVICE void choose_tile(const GateArguments& in, const float* logits, int first_token) {
  constexpr int values = tile_experts / lanes;
  constexpr int at_once = warp_lanes / lanes;
  constexpr int own = gate_tokens / (gate_threads / warp_lanes);
  for (int step = 0; step < own; step += at_once) {
    const int row = warp_index() * own + step + lane_index() / lanes;
    TokenLogits<lanes, values> token;
    token.experts = in.choose.experts;
    MOESIM_UNROLL_ALL
    for (int value = 0; value < values; ++value) {
      const int expert = token.expert_at(value);
      token.logit[value] = expert < token.experts
                               ? logits[row * GateShape<tile_experts>::logit_stride + expert]
                               : -__builtin_huge_valf();
    }
    token.prepare();
    choose_token(in.choose, token, first_token + row, first_token + row < in.choose.tokens);
  }
}

// ceil(tokens / gate_tokens) * tiles blocks of gate_threads threads, where tiles of `tile_experts`
// experts cover all; with several, logits are all it makes.
template <int tile_experts>
MOESIM_LARGE_KERNEL(gate_threads)
gate_bfloat16(GateArguments in) {
  using Shape = GateShape<tile_experts>;
  constexpr int ring_bytes = Shape::stages * Shape::stage_bytes;
  const int tiles = (in.choose.experts + tile_experts - 1) / tile_experts;
  const int first_token = block_index() / tiles * gate_tokens;
  const int first_expert = block_index() % tiles * tile_experts;
  const int steps = (in.hidden + gate_depth - 1) / gate_depth;
  unsigned char* memory = shared_memory();
  const StageCopier<tile_experts> copier(in, first_token, first_expert);
  for (int step = 0; step < Shape::stages - 1; ++step) {
    if (step < steps) copier.copy(memory + step * Shape::stage_bytes, step);
    commit_copies();
  }
  float sum[2][tile_experts / 8][4] = {};
  int read = 0;  // offsets of the stages in the ring
  int write = ring_bytes - Shape::stage_bytes;
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<Shape::stages - 2>();
    sync_block();  // the stage is there for all, and all are done with the one before it
    const int next = step + Shape::stages - 1;
    if (next < steps) copier.copy(memory + write, next);
    commit_copies();
    multiply_stage<tile_experts>(memory + read, sum);
    write = read;  // it is read no more after the next sync_block()
    read = read + Shape::stage_bytes == ring_bytes ? 0 : read + Shape::stage_bytes;
  }
  wait_for_copies<0>();
  auto* logits = reinterpret_cast<float*>(memory);
  join_halves<tile_experts>(sum, logits);
  if (in.logits != nullptr) write_logits<tile_experts>(in, logits, first_token, first_expert);
  if (tiles > 1) return;
  if (in.choose.choices <= 8 && in.choose.local_places <= 8) {
    choose_tile<tile_experts, 8>(in, logits, first_token);
  } else {
    choose_tile<tile_experts, Shape::lanes>(in, logits, first_token);
  }
}

inline constexpr int plain_tile = 64;   // tokens, and experts, of a block of the fp32 kernel
inline constexpr int plain_depth = 16;  // hidden elements at a time

// fp32 input: logits only, in true fp32 on the ordinary cores. One block per 64 tokens and 64
// experts, 4 x 4 of them per thread; each sum runs over the hidden elements in order.
MOESIM_LARGE_KERNEL(gate_threads)
gate_float32(GateArguments in) {
  auto* x = reinterpret_cast<float*>(shared_memory());  // [plain_depth, plain_tile + 1]
  float* w = x + plain_depth * (plain_tile + 1);        // the same
  const int tiles = (in.choose.experts + plain_tile - 1) / plain_tile;
  const int first_token = block_index() / tiles * plain_tile;
  const int first_expert = block_index() % tiles * plain_tile;
  const auto* tokens = static_cast<const float*>(in.tokens);
  const auto* weights = static_cast<const float*>(in.weights);
  const int row = thread_index() / 16;
  const int column = thread_index() % 16;
  float sum[4][4] = {};
  for (int begin = 0; begin < in.hidden; begin += plain_depth) {
    for (int at = row; at < plain_tile; at += gate_threads / 16) {
      const int from = begin + column;
      const int token = first_token + at;
      const int expert = first_expert + at;
      const bool inside = from < in.hidden;
      x[column * (plain_tile + 1) + at] =
          inside && token < in.choose.tokens
              ? load_constant(tokens + static_cast<std::int64_t>(token) * in.hidden + from)
              : 0.0F;
      w[column * (plain_tile + 1) + at] =
          inside && expert < in.choose.experts
              ? load_constant(weights + static_cast<std::int64_t>(expert) * in.hidden + from)
              : 0.0F;
    }
    sync_block();
    for (int depth = 0; depth < plain_depth; ++depth) {
      for (int down = 0; down < 4; ++down) {
        const float left = x[depth * (plain_tile + 1) + row + 16 * down];
        for (int across = 0; across < 4; ++across) {
          sum[down][across] = multiply_add(left, w[depth * (plain_tile + 1) + column + 16 * across],
                                           sum[down][across]);
        }
      }
    }
    sync_block();
  }
  for (int down = 0; down < 4; ++down) {
    const int token = first_token + row + 16 * down;
    for (int across = 0; across < 4; ++across) {
      const int expert = first_expert + column + 16 * across;
      if (token >= in.choose.tokens || expert >= in.choose.experts) continue;
      in.logits[static_cast<std::int64_t>(token) * in.choose.experts + expert] = sum[down][across];
    }
  }
}

inline constexpr std::size_t gate_float32_shared =
    std::size_t{2} * plain_depth * (plain_tile + 1) * 4;

// Calls `with(tile_experts)` for the tile that holds `experts`, or the largest.
template <typename Use>
void with_gate_tile(int experts, Use&& use) {
  if (experts <= 16) return use(Constant<16>());
  if (experts <= 32) return use(Constant<32>());
  if (experts <= 64) return use(Constant<64>());
  return use(Constant<128>());
}

}  // namespace moesim::kernels::routing
