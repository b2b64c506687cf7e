#pragma once

#include <cstddef>

#include "kernels/base/block.cuh"
#include "kernels/routing/arguments.hpp"

// What the ways to assign capacity (assign.cuh) share: a block's shared memory, and by which keys
// the routes of an expert stand in its queue.
namespace moesim::kernels::routing {

inline constexpr int assign_threads = 512;
inline constexpr int digit_bits = 10;
inline constexpr int bins = 1 << digit_bits;
inline constexpr int finalists_most = 32;  // so many keys are compared with each other

// The block's shared memory, in 32-bit words.
struct AssignMemory {
  std::uint32_t* histogram;  // [bins]
  std::uint32_t* finalists;  // [2, finalists_most]
  std::uint32_t* warps;  // [4, warp_lanes], for each warp: two that scans use in turn, two of keys
  std::uint32_t* scratch;  // [scan_words]
  std::uint32_t* counts;   // [most_choices]
  std::uint32_t* begin;    // [most_choices + 1]: where the routes of each choice begin
  std::uint32_t* shared;   // [SharedWord]
  std::uint32_t* masks;    // [choice, word], and a piece of 16 bytes may be stored at once
  std::uint32_t* ties;     // [word]
  std::uint32_t* keys;     // [buffered_keys]
  std::uint32_t* routes;   // [buffered_keys]
};
enum SharedWord {
  cursor,
  largest_key,
  largest_inverse,
  found_digit,
  found_above,
  found_count,
  cut,
  cut_low,
  cut_high,
  shared_words
};

// Words that are 0 at first, one behind the other: counts, begin, shared.
inline constexpr int cleared_words = most_choices + most_choices + 1 + shared_words;

MOESIM_HOST_DEVICE inline int mask_words(int tokens) { return (tokens + 31) / 32; }

// Words in front of the masks.
inline constexpr int fixed_words =
    bins + 2 * finalists_most + 4 * warp_lanes + scan_words + cleared_words;

MOESIM_HOST_DEVICE inline std::size_t assign_shared_bytes(int tokens, int choices,
                                                          int buffered_keys) {
  const auto words = static_cast<std::size_t>(mask_words(tokens));
  return 4 * (fixed_words + words * static_cast<std::size_t>(choices + 1) +
              2 * static_cast<std::size_t>(buffered_keys));
}

MOESIM_DEVICE AssignMemory assign_memory(const AssignArguments& in) {
  AssignMemory memory{};
  auto* next = reinterpret_cast<std::uint32_t*>(shared_memory());
  const int words = mask_words(in.tokens);
  memory.histogram = next;
  memory.finalists = next += bins;
  memory.warps = next += 2 * finalists_most;
  memory.scratch = next += 4 * warp_lanes;
  memory.counts = next += scan_words;
  memory.begin = next += most_choices;
  memory.shared = next += most_choices + 1;
  memory.masks = next += shared_words;
  memory.ties = next += words * in.choices;
  memory.keys = next += words;
  memory.routes = next + in.buffered_keys;
  return memory;
}

// How many routes of an expert have slots.
struct KeptRoutes {
  std::uint32_t all = 0;
  std::uint32_t primary = 0;
};

// The routes of one stage: choices [first, last) that stand in one queue, and the keys they stand
// there by.
struct Stage {
  int first = 0;
  int last = 0;
  bool by_position = false;
  bool own_key = false;  // g of the choice itself, else `key`
  const std::uint32_t* key = nullptr;
};

MOESIM_DEVICE Stage stage_from(const AssignArguments& in, int choice) {
  Stage stage;
  stage.first = choice;
  stage.last = in.one_queue && choice < in.top_k ? in.top_k : choice + 1;
  stage.own_key = in.one_queue || (choice == in.top_k && in.fill_by_nominee);
  stage.by_position = !stage.own_key && in.order == KeyOrder::position;
  // Probabilities are not negative, so that their bits order as they do; that of choice 0 is the
  // largest.
  stage.key = in.order == KeyOrder::random ? in.key
                                           : reinterpret_cast<const std::uint32_t*>(in.probability);
  return stage;
}

MOESIM_DEVICE std::uint32_t key_of(const AssignArguments& in, const Stage& stage, int choice,
                                   int token) {
  if (!stage.own_key) return load_constant(stage.key + token);
  return bits_of(load_constant(in.probability + choice * in.stride + token));
}

}  // namespace moesim::kernels::routing
