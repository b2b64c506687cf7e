#pragma once

#include <cstddef>

#include "kernels/base/block.cuh"
#include "kernels/routing/arguments.hpp"

// Capacity assignment in one launch: a block of 1,024 threads per expert, no block waits for
// another, no sort.
//
// Choices come one after another, so at most one choice of an expert is cut: those before it fit
// whole, those after it find no slot (own-score: the primary choices together count as one). A
// block therefore
//   1. turns its routes into bit masks [choice, token] in shared memory: reads k' S experts of 2
//      bytes in 16-byte pieces, which E blocks share in L2;
//   2. counts the bits per choice and so finds the cut choice and its quota;
//   3. if there is one, selects the quota-th largest key: the keys of that choice are gathered into
//      shared memory and narrowed by a histogram of 8 bits at a time, from the highest bit in which
//      they differ, until a bin is kept whole or the bits run out; then the tokens of equal key
//      are cut by index;
//   4. numbers the bits that are left in (choice, token) order: the slots.
// At S = 16,384, E = 64, k = 2: 64 KB of experts a block (4 MB from L2 in all, 64 KB from memory),
// about 256 keys, two or three histogram passes; 128 KB of slots and E C rows written. Expected is
// the latency of some ten dependent steps of 0.3 to 0.7 us each, not bandwidth.
namespace moesim::kernels::routing {

inline constexpr int assign_threads = 1024;
inline constexpr int digit_bits = 8;
inline constexpr int bins = 1 << digit_bits;

// The block's shared memory.
struct AssignMemory {
  std::uint32_t* masks;      // [choice, word]
  std::uint32_t* ties;       // [word]
  std::uint32_t* histogram;  // [bins]
  std::uint32_t* scratch;    // [scan_words]
  std::uint32_t* counts;     // [most_choices]
  std::uint32_t* shared;     // [8], named below
  std::uint32_t* keys;       // [buffered_keys]
};
enum SharedWord {
  cursor,
  largest_key,
  largest_inverse,
  found_digit,
  found_above,
  found_count,
  cut
};

MOESIM_HOST_DEVICE inline int mask_words(int tokens) { return (tokens + 31) / 32; }

MOESIM_HOST_DEVICE inline std::size_t assign_shared_bytes(int tokens, int choices,
                                                          int buffered_keys) {
  const auto words = static_cast<std::size_t>(mask_words(tokens));
  return 4 * (words * static_cast<std::size_t>(choices + 1) + bins + scan_words + most_choices + 8 +
              static_cast<std::size_t>(buffered_keys));
}

MOESIM_DEVICE AssignMemory assign_memory(const AssignArguments& in) {
  AssignMemory memory{};
  auto* next = reinterpret_cast<std::uint32_t*>(shared_memory());
  const int words = mask_words(in.tokens);
  memory.masks = next;
  memory.ties = next += words * in.choices;
  memory.histogram = next += words;
  memory.scratch = next += bins;
  memory.counts = next += scan_words;
  memory.shared = next += most_choices;
  memory.keys = next + 8;
  return memory;
}

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

MOESIM_DEVICE void find_masks(const AssignArguments& in, const AssignMemory& memory, int expert) {
  const int pieces = mask_words(in.tokens) * 4;  // of 8 tokens
  auto* bytes = reinterpret_cast<std::uint8_t*>(memory.masks);
  for (int choice = 0; choice < in.choices; ++choice) {
    const std::uint16_t* row = in.expert + choice * in.stride;
    MOESIM_UNROLL(4)
    for (int piece = thread_index(); piece < pieces; piece += block_threads()) {
      std::uint32_t mask = 0;
      if (piece * 8 < in.tokens) {
        const Vector16 experts = load_constant(reinterpret_cast<const Vector16*>(row) + piece);
        for (int pair = 0; pair < 4; ++pair) {
          const std::uint32_t both = experts.word[pair];
          mask |= ((both & 0xffffU) == static_cast<std::uint32_t>(expert) ? 1U : 0U) << (2 * pair);
          mask |= (both >> 16 == static_cast<std::uint32_t>(expert) ? 2U : 0U) << (2 * pair);
        }
        const int there = in.tokens - piece * 8;
        if (there < 8) mask &= (1U << there) - 1;
      }
      bytes[choice * pieces + piece] = static_cast<std::uint8_t>(mask);
    }
  }
}

MOESIM_DEVICE void count_masks(const AssignArguments& in, const AssignMemory& memory) {
  const int words = mask_words(in.tokens);
  for (int choice = 0; choice < in.choices; ++choice) {
    std::uint32_t count = 0;
    for (int word = thread_index(); word < words; word += block_threads()) {
      count += static_cast<std::uint32_t>(popcount(memory.masks[choice * words + word]));
    }
    count = warp_sum(count);
    if (lane_index() == 0 && count != 0) atomic_add(&memory.counts[choice], count);
  }
}

// Calls `use(key)` for every route of the stage, on whichever thread.
template <typename Use>
MOESIM_DEVICE void visit_keys(const AssignArguments& in, const AssignMemory& memory,
                              const Stage& stage, std::uint32_t routes, Use&& use) {
  if (routes <= static_cast<std::uint32_t>(in.buffered_keys)) {
    for (std::uint32_t at = static_cast<std::uint32_t>(thread_index()); at < routes;
         at += static_cast<std::uint32_t>(block_threads())) {
      use(memory.keys[at]);
    }
    return;
  }
  const int words = mask_words(in.tokens);
  const int warps = block_threads() / warp_lanes;
  for (int choice = stage.first; choice < stage.last; ++choice) {
    MOESIM_UNROLL(4)
    for (int word = warp_index(); word < words; word += warps) {
      if ((memory.masks[choice * words + word] >> lane_index() & 1U) == 0) continue;
      use(key_of(in, stage, choice, word * 32 + lane_index()));
    }
  }
}

// Gathers the keys if there is room, and finds the largest and the smallest.
MOESIM_DEVICE void gather_keys(const AssignArguments& in, const AssignMemory& memory,
                               const Stage& stage, std::uint32_t routes) {
  const int words = mask_words(in.tokens);
  const int warps = block_threads() / warp_lanes;
  const bool buffered = routes <= static_cast<std::uint32_t>(in.buffered_keys);
  std::uint32_t most = 0;
  std::uint32_t most_inverse = 0;
  for (int choice = stage.first; choice < stage.last; ++choice) {
    MOESIM_UNROLL(4)
    for (int word = warp_index(); word < words; word += warps) {
      const std::uint32_t mask = memory.masks[choice * words + word];
      if (mask == 0) continue;  // the same for all lanes
      const bool mine = (mask >> lane_index() & 1U) != 0;
      const std::uint32_t key = mine ? key_of(in, stage, choice, word * 32 + lane_index()) : 0;
      if (mine) {
        most = key > most ? key : most;
        most_inverse = ~key > most_inverse ? ~key : most_inverse;
      }
      if (!buffered) continue;
      std::uint32_t at = 0;
      if (lane_index() == 0) {
        at = atomic_add(&memory.shared[cursor], static_cast<std::uint32_t>(popcount(mask)));
      }
      at = shuffle(at, 0);
      // Their order does not matter: only counts are taken of them.
      if (mine) memory.keys[at + static_cast<std::uint32_t>(popcount(mask & lanes_below()))] = key;
    }
  }
  most = warp_max(most);
  most_inverse = warp_max(most_inverse);
  if (lane_index() == 0) {
    atomic_max(&memory.shared[largest_key], most);
    atomic_max(&memory.shared[largest_inverse], most_inverse);
  }
}

// Warp 0 finds the bin, from the highest down, in which the `wanted`-th key lies.
MOESIM_DEVICE void find_bin(const AssignMemory& memory, std::uint32_t wanted) {
  constexpr int per_lane = bins / warp_lanes;
  if (warp_index() != 0) return;
  const int highest = bins - 1 - lane_index() * per_lane;
  std::uint32_t own = 0;
  for (int step = 0; step < per_lane; ++step) own += memory.histogram[highest - step];
  std::uint32_t upto = own;
  for (int distance = 1; distance < warp_lanes; distance *= 2) {
    const std::uint32_t below = shuffle_up(upto, distance);
    if (lane_index() >= distance) upto += below;
  }
  std::uint32_t above = upto - own;
  if (above >= wanted || upto < wanted) return;
  int bin = highest;
  while (above + memory.histogram[bin] < wanted) above += memory.histogram[bin--];
  memory.shared[found_digit] = static_cast<std::uint32_t>(bin);
  memory.shared[found_above] = above;
  memory.shared[found_count] = memory.histogram[bin];
}

struct Threshold {
  std::uint32_t key = 0;        // larger ones are kept
  std::uint32_t ties_kept = 0;  // of those equal to it, the first so many by token
  bool keeps_all_ties = false;
};

MOESIM_DEVICE Threshold find_threshold(const AssignArguments& in, const AssignMemory& memory,
                                       const Stage& stage, std::uint32_t routes,
                                       std::uint32_t quota) {
  gather_keys(in, memory, stage, routes);
  sync_block();
  Threshold threshold;
  threshold.key = memory.shared[largest_key];
  threshold.ties_kept = quota;
  const std::uint32_t differ = threshold.key ^ ~memory.shared[largest_inverse];
  if (differ == 0) return threshold;
  int unknown = 32 - leading_zeros(differ);  // bits that are still open
  while (unknown > 0) {
    const int shift = unknown > digit_bits ? unknown - digit_bits : 0;
    const std::uint32_t known = unknown < 32 ? 0xffffffffU << unknown : 0;
    for (int bin = thread_index(); bin < bins; bin += block_threads()) memory.histogram[bin] = 0;
    sync_block();
    const std::uint32_t prefix = threshold.key & known;
    visit_keys(in, memory, stage, routes, [&](std::uint32_t key) {
      if (((key ^ prefix) & known) != 0) return;
      atomic_add(&memory.histogram[key >> shift & (bins - 1)], 1U);
    });
    sync_block();
    find_bin(memory, threshold.ties_kept);
    sync_block();
    threshold.key = prefix | memory.shared[found_digit] << shift;
    threshold.ties_kept -= memory.shared[found_above];
    threshold.keeps_all_ties = memory.shared[found_count] == threshold.ties_kept;
    if (threshold.keeps_all_ties) return threshold;  // all of the bin: keys from its lowest on
    unknown = shift;
  }
  return threshold;
}

// The token of the `wanted`-th tie, in token order.
MOESIM_DEVICE int find_cut(const AssignArguments& in, const AssignMemory& memory,
                           std::uint32_t wanted) {
  const int words = mask_words(in.tokens);
  std::uint32_t passed = 0;
  for (int first = 0; first < words; first += block_threads()) {
    const int word = first + thread_index();
    const std::uint32_t mask = word < words ? memory.ties[word] : 0;
    const ScanResult scan = block_scan(static_cast<std::uint32_t>(popcount(mask)), memory.scratch);
    const std::uint32_t before = passed + scan.before;
    if (before < wanted && before + static_cast<std::uint32_t>(popcount(mask)) >= wanted) {
      std::uint32_t left = mask;
      for (std::uint32_t bit = before + 1; bit < wanted; ++bit) left &= left - 1;
      memory.shared[cut] = static_cast<std::uint32_t>(word * 32 + 31 - leading_zeros(left & -left));
    }
    passed += scan.total;
    if (passed >= wanted) break;
  }
  sync_block();
  return static_cast<int>(memory.shared[cut]);
}

// Leaves in the stage's masks the `quota` routes that its expert keeps.
MOESIM_DEVICE void cut_stage(const AssignArguments& in, const AssignMemory& memory,
                             const Stage& stage, std::uint32_t routes, std::uint32_t quota) {
  const int words = mask_words(in.tokens);
  const int warps = block_threads() / warp_lanes;
  Threshold threshold;
  threshold.ties_kept = quota;
  if (!stage.by_position) threshold = find_threshold(in, memory, stage, routes, quota);
  int last = in.tokens;
  if (!threshold.keeps_all_ties) {
    MOESIM_UNROLL(4)
    for (int word = warp_index(); word < words; word += warps) {
      std::uint32_t ties = 0;
      for (int choice = stage.first; choice < stage.last; ++choice) {
        const std::uint32_t mask = memory.masks[choice * words + word];
        const bool mine = (mask >> lane_index() & 1U) != 0;
        ties |= stage.by_position
                    ? mask
                    : ballot(mine &&
                             key_of(in, stage, choice, word * 32 + lane_index()) == threshold.key);
      }
      if (lane_index() == 0) memory.ties[word] = ties;
    }
    sync_block();
    last = find_cut(in, memory, threshold.ties_kept);
  }
  for (int choice = stage.first; choice < stage.last; ++choice) {
    MOESIM_UNROLL(4)
    for (int word = warp_index(); word < words; word += warps) {
      const std::uint32_t mask = memory.masks[choice * words + word];
      if (mask == 0) continue;
      bool keep = (mask >> lane_index() & 1U) != 0;
      const int token = word * 32 + lane_index();
      if (keep && stage.by_position) keep = token <= last;
      if (keep && !stage.by_position) {
        const std::uint32_t key = key_of(in, stage, choice, token);
        keep = key > threshold.key || (key == threshold.key && token <= last);
      }
      const std::uint32_t kept = ballot(keep);
      sync_warp();  // all lanes have read what lane 0 replaces: a ballot orders no memory
      if (lane_index() == 0) memory.masks[choice * words + word] = kept;
    }
  }
}

MOESIM_DEVICE void clear_choices(const AssignArguments& in, const AssignMemory& memory, int first) {
  const int words = mask_words(in.tokens);
  for (int at = first * words + thread_index(); at < in.choices * words; at += block_threads()) {
    memory.masks[at] = 0;
  }
}

// Numbers the bits of all masks in (choice, token) order and calls `use(choice, token, number)` for
// each. Returns how many there are.
template <typename Use>
MOESIM_DEVICE std::uint32_t number_routes(const AssignArguments& in, const AssignMemory& memory,
                                          Use&& use) {
  const int words = mask_words(in.tokens);
  const int all = words * in.choices;
  std::uint32_t passed = 0;
  for (int first = 0; first < all; first += block_threads()) {
    const int at = first + thread_index();
    const std::uint32_t mask = at < all ? memory.masks[at] : 0;
    const ScanResult scan = block_scan(static_cast<std::uint32_t>(popcount(mask)), memory.scratch);
    const std::uint32_t before = passed + scan.before;
    passed += scan.total;
    const int warp_first = first + warp_index() * warp_lanes;
    for (int from = 0; from < warp_lanes; ++from) {
      const std::uint32_t word_mask = shuffle(mask, from);
      const std::uint32_t word_before = shuffle(before, from);
      if ((word_mask >> lane_index() & 1U) == 0) continue;
      const int choice = (warp_first + from) / words;
      const int token = (warp_first + from - choice * words) * 32 + lane_index();
      use(choice, token,
          word_before + static_cast<std::uint32_t>(popcount(word_mask & lanes_below())));
    }
  }
  return passed;
}

// One block per expert, assign_threads threads, assign_shared_bytes of shared memory. `stride` is a
// multiple of 32 and `expert` aligned to 16 bytes.
MOESIM_LARGE_KERNEL(assign_threads)
assign_capacity(AssignArguments in) {
  const int expert = block_index();
  const AssignMemory memory = assign_memory(in);
  if (thread_index() < most_choices) memory.counts[thread_index()] = 0;
  if (thread_index() < 8) memory.shared[thread_index()] = 0;
  find_masks(in, memory, expert);
  sync_block();
  count_masks(in, memory);
  sync_block();
  auto left = static_cast<std::uint32_t>(in.capacity);
  std::uint32_t kept_primary = 0;
  for (int choice = 0; choice < in.choices;) {
    const Stage stage = stage_from(in, choice);
    std::uint32_t routes = 0;
    for (int at = stage.first; at < stage.last; ++at) routes += memory.counts[at];
    const std::uint32_t kept = routes < left ? routes : left;
    if (stage.first < in.top_k) kept_primary += kept;
    left -= kept;
    choice = stage.last;
    if (kept == routes) continue;
    if (kept == 0) {
      clear_choices(in, memory, stage.first);
    } else {
      cut_stage(in, memory, stage, routes, kept);
      clear_choices(in, memory, stage.last);
    }
    break;
  }
  sync_block();
  std::int32_t* rows = in.row_route == nullptr
                           ? nullptr
                           : in.row_route + static_cast<std::int64_t>(expert) * in.capacity;
  const std::uint32_t kept =
      number_routes(in, memory, [&](int choice, int token, std::uint32_t slot) {
        in.slot[choice * in.stride + token] = static_cast<std::int32_t>(slot);
        if (rows != nullptr) rows[slot] = token * in.choices + choice;
      });
  if (rows != nullptr) {
    for (int row = static_cast<int>(kept) + thread_index(); row < in.capacity;
         row += block_threads()) {
      rows[row] = -1;
    }
  }
  if (thread_index() != 0) return;
  in.kept_rows[expert] = static_cast<std::int32_t>(kept);
  if (in.kept_primary != nullptr) {
    in.kept_primary[expert] = static_cast<std::int32_t>(kept_primary);
  }
}

}  // namespace moesim::kernels::routing
