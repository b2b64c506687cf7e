#pragma once

#include "kernels/routing/assign_memory.cuh"

// Capacity assignment where an expert has more routes than shared memory has room for: on the bit
// masks [choice, token] alone. The keys are read again for each pass, unless those of the cut
// choice fit.
namespace moesim::kernels::routing {

inline constexpr int mask_digit_bits = 8;
inline constexpr int mask_bins = 1 << mask_digit_bits;

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
    MOESIM_UNROLL(1)
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
    MOESIM_UNROLL(1)
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
  constexpr int per_lane = mask_bins / warp_lanes;
  if (warp_index() != 0) return;
  const int highest = mask_bins - 1 - lane_index() * per_lane;
  std::uint32_t own = 0;
  for (int step = 0; step < per_lane; ++step) own += memory.histogram[highest - step];
  const std::uint32_t upto = warp_scan(own);
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
    const int shift = unknown > mask_digit_bits ? unknown - mask_digit_bits : 0;
    const std::uint32_t known = unknown < 32 ? 0xffffffffU << unknown : 0;
    for (int bin = thread_index(); bin < mask_bins; bin += block_threads())
      memory.histogram[bin] = 0;
    sync_block();
    const std::uint32_t prefix = threshold.key & known;
    visit_keys(in, memory, stage, routes, [&](std::uint32_t key) {
      if (((key ^ prefix) & known) != 0) return;
      atomic_add(&memory.histogram[key >> shift & (mask_bins - 1)], 1U);
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
    MOESIM_UNROLL(1)
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
    MOESIM_UNROLL(1)
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

// Assigns the slots of `expert`, whose routes are the masks.
MOESIM_DEVICE KeptRoutes assign_masks(const AssignArguments& in, const AssignMemory& memory,
                                      int expert) {
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
  return {kept, kept_primary};
}

}  // namespace moesim::kernels::routing
