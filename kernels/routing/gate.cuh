#pragma once

#include <cstddef>

#include "kernels/base/bfloat16.cuh"
#include "kernels/base/block.cuh"
#include "kernels/routing/choose.cuh"

// The router GEMM on tensor cores (mma.sync m16n8k16, bf16 in, fp32 sums), softmax and top-k' on
// its accumulators. x is read once: a block takes 128 tokens and all experts (up to 128, as one
// tile; more experts are several tiles and a launch of choose_experts). The floor is the 2 S h
// bytes of x, 28 us at S = 16,384, h = 4,096 and 4.8 TB/s: so what counts is bytes in flight, and
// that no warp waits for another. 128 blocks fill an H200's 132 processors once.
//
// The block's warps are in parts that take turns at stages of 64 hidden elements. Each part has a
// ring of its own, kept filled by asynchronous copies, and barriers of its own, so that one waits
// for memory or reads its matrices while another multiplies. The parts' stages lie side by side in
// memory: with four of them 512 bytes of a row are read at about the same time. Their sums are
// added at the end in a fixed order. A warp has 64 tokens (32 where accumulators or shared memory
// are short), which read W from shared memory once. Rows of a stage are 128 bytes; their 16-byte
// pieces are permuted by the row, so that the eight rows of a matrix lie in different banks.
namespace moesim::kernels::routing {

inline constexpr int gate_threads = 256;
inline constexpr int gate_tokens = 128;  // of a block
inline constexpr int gate_depth = 64;    // hidden elements of a stage
inline constexpr int gate_pieces = gate_depth / 8;

// `large`: where a block can have 227 KiB of shared memory (sm_90), else 163 (sm_80).
template <int tile_experts, bool large>
struct GateShape {
  static constexpr int parts = tile_experts > 64 || (tile_experts > 32 && !large) ? 2 : 4;
  static constexpr int part_threads = gate_threads / parts;
  static constexpr int warp_tokens = gate_tokens / (part_threads / warp_lanes);
  static constexpr int rows = gate_tokens + tile_experts;  // of a stage
  static constexpr int stage_bytes = rows * gate_depth * 2;
  static constexpr int room = (large ? 227 : 163) * 1024;
  static constexpr int most_stages = room / (parts * stage_bytes);
  static constexpr int stages = most_stages < 4 ? most_stages : 4;  // of a part
  static_assert(stages >= 2);
  static constexpr int ring_bytes = stages * stage_bytes;
  static constexpr int logit_stride = tile_experts + 8;
  static constexpr int part_logits = gate_tokens * logit_stride;
  static constexpr int logit_bytes = parts * part_logits * 4;
  static constexpr int shared_bytes =
      parts * ring_bytes > logit_bytes ? parts* ring_bytes : logit_bytes;
  static constexpr int lanes = tile_experts < 32 ? tile_experts : 32;  // for many choices
};

// The 16-byte piece `piece` of row `row` of a stage.
MOESIM_DEVICE unsigned char* gate_piece(unsigned char* stage, int row, int piece) {
  return stage + (row * gate_pieces + (piece ^ row % 8)) * 16;
}

// What this thread copies of each of its part's stages: piece `thread % 8` of row `thread / 8` and
// of each row_step-th row below it.
template <typename Shape>
struct StageCopier {
  static constexpr int row_step = Shape::part_threads / gate_pieces;
  static constexpr int token_copies = gate_tokens / row_step;
  static constexpr int copies = Shape::rows / row_step;
  static_assert(Shape::rows % row_step == 0 && row_step % 8 == 0 && copies < 32);
  static constexpr std::uint32_t all = (1U << copies) - 1;

  const Bfloat16* token_row;   // of the first copy, hidden element `column` of stage 0
  const Bfloat16* expert_row;  // of the first copy of an expert
  std::uint32_t there = 0;     // a bit for each copy: whether its token or expert exists
  int column = 0;
  int hidden = 0;
  int place = 0;  // of the first copy, bytes from the stage's begin

  MOESIM_DEVICE StageCopier(const GateArguments& in, int first_token, int first_expert)
      : column(thread_index() % gate_pieces * 8), hidden(in.hidden) {
    const int first = thread_index() % Shape::part_threads / gate_pieces;
    place = (first * gate_pieces + (thread_index() % gate_pieces ^ first % 8)) * 16;
    MOESIM_UNROLL_ALL
    for (int copy = 0; copy < copies; ++copy) {
      const int row = copy * row_step + first;
      const bool exists = row < gate_tokens ? first_token + row < in.choose.tokens
                                            : first_expert + row - gate_tokens < in.choose.experts;
      there |= (exists ? 1U : 0U) << copy;
    }
    token_row = static_cast<const Bfloat16*>(in.tokens) +
                static_cast<std::int64_t>(first_token + first) * hidden + column;
    expert_row = static_cast<const Bfloat16*>(in.weights) +
                 static_cast<std::int64_t>(first_expert + first) * hidden + column;
  }

  // Hidden elements [step * gate_depth, ... + gate_depth) to `stage`, zeros where there are none.
  MOESIM_DEVICE void copy(unsigned char* stage, int step) const {
    const int from = step * gate_depth;
    if (there == all && from + column < hidden) {
      each_copy(stage, from, [](int) { return true; });
    } else {
      const std::uint32_t valid = from + column < hidden ? there : 0;
      each_copy(stage, from, [valid](int copy) { return (valid >> copy & 1U) != 0; });
    }
  }

 private:
  template <typename Valid>
  MOESIM_DEVICE void each_copy(unsigned char* stage, int from, Valid&& valid) const {
    const std::int64_t down = static_cast<std::int64_t>(row_step) * hidden;
    const Bfloat16* row = token_row + from;
    MOESIM_UNROLL_ALL
    for (int copy = 0; copy < copies; ++copy) {
      if (copy == token_copies) row = expert_row + from;
      // A copy of nothing reads nothing, wherever its address points.
      copy_async_16(stage + place + copy * row_step * gate_pieces * 16,
                    valid(copy) ? row : expert_row, valid(copy));
      row += down;
    }
  }
};

// This warp's tokens and all experts of a stage: four steps of 16 hidden elements.
template <typename Shape, int parts, int blocks>
MOESIM_DEVICE void multiply_stage(unsigned char* stage, float (&sum)[parts][blocks][4]) {
  const int lane = lane_index();
  const int token_rows = thread_index() % Shape::part_threads / warp_lanes * Shape::warp_tokens;
  MOESIM_UNROLL_ALL
  for (int piece = 0; piece < gate_pieces; piece += 2) {
    std::uint32_t a[parts][4];
    MOESIM_UNROLL_ALL
    for (int part = 0; part < parts; ++part) {
      load_matrices(a[part],
                    gate_piece(stage, token_rows + part * 16 + lane % 16, piece + lane / 16));
    }
    MOESIM_UNROLL_ALL
    for (int pair = 0; pair < blocks / 2; ++pair) {
      std::uint32_t b[4];
      const int row = gate_tokens + pair * 16 + lane / 16 * 8 + lane % 8;
      load_matrices(b, gate_piece(stage, row, piece + lane / 8 % 2));
      const std::uint32_t first[2] = {b[0], b[1]};
      const std::uint32_t second[2] = {b[2], b[3]};
      MOESIM_UNROLL_ALL
      for (int part = 0; part < parts; ++part) {
        multiply_matrices(sum[part][2 * pair], a[part], first);
        multiply_matrices(sum[part][2 * pair + 1], a[part], second);
      }
    }
  }
}

struct alignas(8) TwoFloats {
  float first, second;
};

// This warp's sums to its part's array of shared memory, [gate_tokens, logit_stride].
template <typename Shape, int parts, int blocks>
MOESIM_DEVICE void store_sums(const float (&sum)[parts][blocks][4], float* logits) {
  const int lane = lane_index();
  const int own = thread_index() % Shape::part_threads / warp_lanes * Shape::warp_tokens;
  logits += thread_index() / Shape::part_threads * Shape::part_logits;
  MOESIM_UNROLL_ALL
  for (int part = 0; part < parts; ++part) {
    MOESIM_UNROLL_ALL
    for (int block = 0; block < blocks; ++block) {
      MOESIM_UNROLL_ALL
      for (int half = 0; half < 2; ++half) {
        const int token = own + part * 16 + half * 8 + lane / 4;
        float* to = logits + token * Shape::logit_stride + block * 8 + lane % 4 * 2;
        *reinterpret_cast<TwoFloats*>(to) = {sum[part][block][2 * half],
                                             sum[part][block][2 * half + 1]};
      }
    }
  }
}

// A logit of the block: its parts' sums, in their order.
template <typename Shape>
MOESIM_DEVICE float joined_logit(const float* logits, int row, int expert) {
  const float* at = logits + row * Shape::logit_stride + expert;
  float sum = at[0];
  MOESIM_UNROLL_ALL
  for (int part = 1; part < Shape::parts; ++part) sum += at[part * Shape::part_logits];
  return sum;
}

template <int tile_experts, typename Shape>
MOESIM_DEVICE void write_logits(const GateArguments& in, const float* logits, int first_token,
                                int first_expert) {
  const int experts = in.choose.experts - first_expert;
  const int width = experts < tile_experts ? experts : tile_experts;
  for (int row = warp_index(); row < gate_tokens; row += gate_threads / warp_lanes) {
    if (first_token + row >= in.choose.tokens) break;
    float* to =
        in.logits + static_cast<std::int64_t>(first_token + row) * in.choose.experts + first_expert;
    for (int expert = lane_index(); expert < width; expert += warp_lanes) {
      to[expert] = joined_logit<Shape>(logits, row, expert);
    }
  }
}

// Each warp writes the logits of its 16 tokens and chooses for them, 32 / lanes of them at once:
// eight lanes a token, so that the warp is done in four rounds, unless more choices are wanted.
// `whole`: there are as many experts as the tile has, so that no lane asks whether its own exist.
template <int tile_experts, int lanes, bool whole, typename Shape>
MOESIM_DEVICE void choose_tile(const GateArguments& in, const float* logits, int first_token) {
  constexpr int values = tile_experts / lanes;
  constexpr int at_once = warp_lanes / lanes;
  constexpr int own = gate_tokens / (gate_threads / warp_lanes);
  const float infinity = __builtin_huge_valf();
  ChooseArguments choose = in.choose;
  if (whole) choose.experts = tile_experts;
  for (int step = 0; step < own; step += at_once) {
    const int row = warp_index() * own + step + lane_index() / lanes;
    const bool there = first_token + row < choose.tokens;
    TokenLogits<lanes, values> token;
    token.experts = choose.experts;
    MOESIM_UNROLL_ALL
    for (int value = 0; value < values; ++value) {
      token.logit[value] = joined_logit<Shape>(logits, row, token.expert_at(value));
    }
    float* to = in.logits + static_cast<std::int64_t>(first_token + row) * choose.experts;
    const bool wanted = there && in.logits != nullptr;
    MOESIM_UNROLL_ALL
    for (int value = 0; value < values; ++value) {
      const int expert = token.expert_at(value);
      if (wanted && expert < choose.experts) to[expert] = token.logit[value];
      token.logit[value] = expert < choose.experts ? token.logit[value] : -infinity;
    }
    token.prepare();
    choose_token(choose, token, first_token + row, there);
  }
}

// ceil(tokens / gate_tokens) * tiles blocks of gate_threads threads, where tiles of `tile_experts`
// experts cover all; with several, logits are all it makes.
template <int tile_experts, bool large>
MOESIM_LARGE_KERNEL(gate_threads)
gate_bfloat16(GateArguments in) {
  using Shape = GateShape<tile_experts, large>;
  const int tiles = (in.choose.experts + tile_experts - 1) / tile_experts;
  const int first_token = block_index() / tiles * gate_tokens;
  const int first_expert = block_index() % tiles * tile_experts;
  // This part has the stages part, part + parts, ... of all.
  const int part = warp_index() / (Shape::part_threads / warp_lanes);
  const int all_steps = (in.hidden + gate_depth - 1) / gate_depth;
  const int steps = (all_steps - part + Shape::parts - 1) / Shape::parts;
  const int rounds = (all_steps + Shape::parts - 1) / Shape::parts;  // of all parts, the last empty
  unsigned char* ring = shared_memory() + part * Shape::ring_bytes;
  const StageCopier<Shape> copier(in, first_token, first_expert);
  for (int step = 0; step < Shape::stages - 1; ++step) {
    if (step < steps) copier.copy(ring + step * Shape::stage_bytes, part + step * Shape::parts);
    commit_copies();
  }
  float sum[Shape::warp_tokens / 16][tile_experts / 8][4] = {};
  int read = 0;  // offsets of the stages in the ring
  int write = Shape::ring_bytes - Shape::stage_bytes;
  // As many barriers for each part: racecheck counts them, and took the next one of the block for
  // another where a part had one less.
  for (int step = 0; step < rounds; ++step) {
    wait_for_copies<Shape::stages - 2>();
    // The stage is there for all of the part, and all are done with the one before it.
    sync_part(part, Shape::part_threads);
    const int next = step + Shape::stages - 1;
    if (next < steps) copier.copy(ring + write, part + next * Shape::parts);
    commit_copies();
    if (step < steps) multiply_stage<Shape>(ring + read, sum);
    write = read;  // it is read no more after the next sync_part()
    read = read + Shape::stage_bytes == Shape::ring_bytes ? 0 : read + Shape::stage_bytes;
  }
  wait_for_copies<0>();
  sync_block();  // all rings are free
  auto* logits = reinterpret_cast<float*>(shared_memory());
  store_sums<Shape>(sum, logits);
  sync_block();
  if (tiles > 1) {
    if (in.logits != nullptr) {
      write_logits<tile_experts, Shape>(in, logits, first_token, first_expert);
    }
  } else if (in.choose.choices <= 8 && in.choose.local_places <= 8) {
    if (in.choose.experts == tile_experts) {
      choose_tile<tile_experts, 8, true, Shape>(in, logits, first_token);
    } else {
      choose_tile<tile_experts, 8, false, Shape>(in, logits, first_token);
    }
  } else {
    choose_tile<tile_experts, Shape::lanes, false, Shape>(in, logits, first_token);
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
