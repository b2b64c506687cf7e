#pragma once

#include "kernels/routing/assign_list.cuh"

// The lists of all experts by a counting sort, in a launch before that of assign.cuh: where E
// blocks that each read all choices would read too much. A block sorts a tile of 1,024 tokens of
// one choice by expert, tokens in order, and writes where each expert begins in it; the block of an
// expert then reads its part of each tile.
namespace moesim::kernels::routing {

inline constexpr int tile_tokens = 1024;
inline constexpr int tile_warps = tile_tokens / warp_lanes;

MOESIM_HOST_DEVICE inline int tiles_of_choice(int tokens) {
  return (tokens + tile_tokens - 1) / tile_tokens;
}

// The block's shared memory: for each warp and expert how many routes, later how many in the warps
// before, as 16 bits, two experts a word; where the experts begin; the tile in their order.
MOESIM_HOST_DEVICE inline int expert_pairs(int experts) { return (experts + 7) / 8 * 4; }
MOESIM_HOST_DEVICE inline std::size_t sort_shared_bytes(int experts) {
  const auto pairs = static_cast<std::size_t>(expert_pairs(experts));
  return 4 * (tile_warps * pairs + 2 * pairs + tile_tokens / 2 + scan_words);
}

struct SortMemory {
  std::uint32_t* counts;  // [warp, pair]
  std::uint32_t* begin;   // [2 pairs]
  std::uint16_t* sorted;  // [tile_tokens]
  std::uint32_t* scratch;
};

MOESIM_DEVICE SortMemory sort_memory(int pairs) {
  SortMemory memory{};
  auto* next = reinterpret_cast<std::uint32_t*>(shared_memory());
  memory.counts = next;
  memory.begin = next += tile_warps * pairs;
  memory.sorted = reinterpret_cast<std::uint16_t*>(next += 2 * pairs);
  memory.scratch = next + tile_tokens / 2;
  return memory;
}

// The lanes of the warp that have the same expert as this one; only for lanes that have one.
MOESIM_DEVICE std::uint32_t same_expert(std::uint32_t expert, bool there) {
  std::uint32_t lanes = ballot(there);
  MOESIM_UNROLL_ALL
  for (std::uint32_t bit = 1; bit < most_experts; bit *= 2) {
    const std::uint32_t votes = ballot((expert & bit) != 0);
    lanes &= (expert & bit) != 0 ? votes : ~votes;
  }
  return lanes;
}

// Turns the counts of a pair of experts into those of the warps before; returns their sums.
MOESIM_DEVICE std::uint32_t sum_warps(std::uint32_t* counts, int pairs) {
  std::uint32_t before = 0;
  MOESIM_UNROLL(8)
  for (int warp = 0; warp < tile_warps; ++warp) {
    const std::uint32_t own = counts[warp * pairs];
    counts[warp * pairs] = before;
    before += own;  // both halves: neither exceeds tile_tokens
  }
  return before;
}

// One block per tile, [choice, tile], tile_tokens threads, sort_shared_bytes of shared memory.
MOESIM_KERNEL(tile_tokens)
sort_tile(AssignArguments in) {
  const int tiles = tiles_of_choice(in.tokens);
  const int choice = block_index() / tiles;
  const int token = (block_index() - choice * tiles) * tile_tokens + thread_index();
  const int pairs = expert_pairs(in.experts);
  const SortMemory memory = sort_memory(pairs);
  std::uint32_t expert = no_expert;
  if (token < in.tokens) expert = load_constant(in.expert + choice * in.stride + token);
  const bool there = expert < static_cast<std::uint32_t>(in.experts);
  auto* cleared = reinterpret_cast<Vector16*>(memory.counts);
  for (int at = thread_index(); at < tile_warps * pairs / 4; at += tile_tokens) {
    cleared[at] = {{0, 0, 0, 0}};
  }
  sync_block();
  auto* halves = reinterpret_cast<std::uint16_t*>(memory.counts + warp_index() * pairs);
  const std::uint32_t same = same_expert(expert, there);
  const auto earlier = static_cast<std::uint32_t>(popcount(same & lanes_below()));
  if (there && earlier == 0) halves[expert] = static_cast<std::uint16_t>(popcount(same));
  sync_block();
  std::uint32_t sums = 0;
  if (thread_index() < pairs) sums = sum_warps(memory.counts + thread_index(), pairs);
  const ScanResult scan = block_scan((sums & 0xffffU) + (sums >> 16), memory.scratch);
  std::uint32_t* out = in.tile_begin + static_cast<std::int64_t>(block_index()) * (in.experts + 1);
  const int first = 2 * thread_index();
  if (thread_index() < pairs) {
    memory.begin[first] = scan.before;
    memory.begin[first + 1] = scan.before + (sums & 0xffffU);
    if (first <= in.experts) out[first] = scan.before;
    if (first < in.experts) out[first + 1] = scan.before + (sums & 0xffffU);
  }
  if (thread_index() == 0) out[in.experts] = scan.total;
  sync_block();
  if (there) {
    memory.sorted[memory.begin[expert] + halves[expert] + earlier] =
        static_cast<std::uint16_t>(thread_index());
  }
  sync_block();
  if (static_cast<std::uint32_t>(thread_index()) < scan.total) {
    in.tile_token[static_cast<std::int64_t>(block_index()) * tile_tokens + thread_index()] =
        memory.sorted[thread_index()];
  }
}

// Where the expert's routes of each tile begin in its list, and where in the tile they are: one
// word each, in the room of the masks. Returns how many routes the expert has.
MOESIM_DEVICE std::uint32_t find_tiles(const AssignArguments& in, const AssignMemory& memory,
                                       int tiles, int expert) {
  std::uint32_t next = 0;
  std::uint32_t* scratch = memory.warps;
  MOESIM_UNROLL(1)
  for (int first = 0; first < tiles; first += block_threads<assign_threads>()) {
    const int tile = first + thread_index();
    std::uint32_t begin = 0;
    std::uint32_t count = 0;
    if (tile < tiles) {
      const std::uint32_t* of_tile =
          in.tile_begin + static_cast<std::int64_t>(tile) * (in.experts + 1) + expert;
      begin = load_constant(of_tile);
      count = load_constant(of_tile + 1) - begin;
    }
    const std::uint32_t upto = warp_scan(count);
    const ScanResult scan = scan_warps(shuffle(upto, warp_lanes - 1), assign_warps(), scratch);
    // At most 2^20 routes, and the expert of an empty part is not looked up.
    if (tile < tiles) {
      memory.masks[tile] = (next + scan.before + upto - count) * tile_tokens + begin % tile_tokens;
    }
    next += scan.total;
    scratch = scratch == memory.warps ? memory.warps + warp_lanes : memory.warps;
  }
  return next;
}

// Makes the expert's list of its parts of the tiles; false if it does not fit. `begin` is known
// then, and a barrier is behind all that.
MOESIM_DEVICE bool list_tiles(const AssignArguments& in, const AssignMemory& memory, int expert) {
  const int of_choice = tiles_of_choice(in.tokens);
  const int tiles = of_choice * in.choices;
  const std::uint32_t routes = find_tiles(in, memory, tiles, expert);
  sync_block();
  if (routes > static_cast<std::uint32_t>(in.buffered_keys)) return false;
  for (int choice = thread_index(); choice <= in.choices;
       choice += block_threads<assign_threads>()) {
    memory.begin[choice] =
        choice < in.choices ? memory.masks[choice * of_choice] / tile_tokens : routes;
  }
  MOESIM_UNROLL(1)
  for (auto place = static_cast<std::uint32_t>(thread_index()); place < routes;
       place += list_step()) {
    int tile = 0;  // the last that begins at `place` or before: it is not empty
    int behind = tiles;
    while (behind - tile > 1) {
      const int middle = (tile + behind) / 2;
      if (memory.masks[middle] / tile_tokens <= place) {
        tile = middle;
      } else {
        behind = middle;
      }
    }
    const std::uint32_t start = memory.masks[tile];
    const std::uint32_t in_tile = start % tile_tokens + place - start / tile_tokens;
    const int token =
        load_constant(in.tile_token + static_cast<std::int64_t>(tile) * tile_tokens + in_tile);
    const int choice = tile / of_choice;
    memory.routes[place] = route_of(choice, (tile - choice * of_choice) * tile_tokens + token);
  }
  sync_block();
  return true;
}

}  // namespace moesim::kernels::routing
