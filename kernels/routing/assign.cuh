#pragma once

#include "kernels/routing/assign_list.cuh"
#include "kernels/routing/assign_masks.cuh"
#include "kernels/routing/assign_tiles.cuh"

// Capacity assignment in one launch, with many experts and choices in two: a block of 512 threads
// per expert, no block waits for another, no sort.
//
// Choices come one after another, so at most one choice of an expert is cut: those before it fit
// whole, those after it find no slot (own-score: the primary choices together count as one). A
// block therefore
//   1. turns its routes into bit masks [choice, token] in shared memory: reads k' S experts of 2
//      bytes in pieces of 16, four of a thread on their way at once, which E blocks share in L2;
//   2. lists them in (choice, token) order: each warp has a range of the masks, so that one scan
//      over the warps, with one barrier, says where each begins;
//   3. finds the cut choice from where the choices begin in the list. The routes before it have
//      their index as slot;
//   4. if there is one, reads a key per route and finds the quota-th largest: a histogram of 1,024
//      bins between the smallest and the largest, which is most often enough; at most 32 keys of
//      the right bin are compared with each other, more are narrowed again. Equal keys differ by
//      token;
//   5. numbers what is kept of that choice in the list's order, by ballots and a scan.
// A list that does not fit in shared memory is not made: assign_masks.cuh does steps 3 to 5 on the
// masks. Where E blocks would read too much in step 1, a launch before this one sorts all routes,
// and the list comes from there (assign_tiles.cuh).
//
// At S = 16,384, E = 64, k = 2: 64 KB of experts a block (4 MB from L2 in all, 64 KB from memory),
// about 512 routes, half of them cut; 128 KB of slots and E C rows written. There are few bytes:
// what counts are two dependent reads of global memory, seven to nine barriers, and an estimated
// 700 instructions of each of 16 warps, four of which share a scheduler. With 32 warps those would
// take longer than all else.
namespace moesim::kernels::routing {

// A place among the masks; choice == in.choices: behind the end.
struct MaskPlace {
  int choice = 0;
  int word = 0;
};

MOESIM_DEVICE MaskPlace moved(const AssignArguments& in, MaskPlace place, int words) {
  const int of_choice = mask_words(in.tokens);
  place.word += words;
  while (place.word >= of_choice && place.choice < in.choices) {  // few choices: no division
    place.word -= of_choice;
    ++place.choice;
  }
  return place;
}

// Groups of 32 words: those of this warp.
struct Groups {
  int first = 0;
  int last = 0;
};

MOESIM_DEVICE Groups own_groups(const AssignArguments& in) {
  const int all = (mask_words(in.tokens) * in.choices + warp_lanes - 1) / warp_lanes;
  const int each = (all + assign_warps() - 1) / assign_warps();
  const int first = warp_index() * each;
  return {first < all ? first : all, first + each < all ? first + each : all};
}

// What a warp loads for a group of masks: lane l has the pieces of 8 tokens l, l + 32, ...
struct Pieces {
  Vector16 piece[4];
  bool whole = false;  // all of one choice and of tokens that are there
};

MOESIM_DEVICE Pieces load_pieces(const AssignArguments& in, int group) {
  Pieces pieces;
  MaskPlace place = moved(in, {}, group * warp_lanes);
  pieces.whole = place.choice < in.choices && place.word + warp_lanes <= in.tokens / 32;
  if (pieces.whole) {
    const std::uint16_t* from = in.expert + place.choice * in.stride + place.word * 32;
    MOESIM_UNROLL_ALL
    for (int at = 0; at < 4; ++at) {
      pieces.piece[at] =
          load_constant(reinterpret_cast<const Vector16*>(from) + at * warp_lanes + lane_index());
    }
    return pieces;
  }
  const int part = lane_index() % 4 * 8;
  place = moved(in, place, lane_index() / 4);
  MOESIM_UNROLL_ALL
  for (int at = 0; at < 4; ++at) {
    const int token = place.word * 32 + part;
    pieces.piece[at] = {{0xffffffffU, 0xffffffffU, 0xffffffffU, 0xffffffffU}};
    if (place.choice < in.choices && token < in.tokens) {
      pieces.piece[at] = load_constant(
          reinterpret_cast<const Vector16*>(in.expert + place.choice * in.stride + token));
    }
    place = moved(in, place, 8);
  }
  return pieces;
}

// Which of eight tokens name the expert, as bits: `both` has the expert in either half. Halves are
// compared two at a time: 0x8000 less a number below 0x8000 has its highest bit only for 0. (The
// highest bit of no_expert is left out, and no expert has the others.)
MOESIM_DEVICE std::uint32_t matches(const Vector16& experts, std::uint32_t both) {
  std::uint32_t found = 0;
  MOESIM_UNROLL_ALL
  for (int pair = 0; pair < 4; ++pair) {
    const std::uint32_t zero = 0x80008000U - ((experts.word[pair] ^ both) & 0x7fff7fffU);
    found |= zero >> (15 - 2 * pair) & (0x00010001U << (2 * pair));
  }
  return (found | found >> 15) & 0xffU;
}

// Stores the masks of a group and returns the lane's; 0 where it has none.
MOESIM_DEVICE std::uint32_t store_masks(const AssignArguments& in, const AssignMemory& memory,
                                        const Pieces& pieces, int group, int expert) {
  const int words = mask_words(in.tokens) * in.choices;
  const std::uint32_t both = static_cast<std::uint32_t>(expert) * 0x10001U;
  auto* bytes = reinterpret_cast<std::uint8_t*>(memory.masks + group * warp_lanes);
  const int bytes_there = (words - group * warp_lanes) * 4;
  MOESIM_UNROLL_ALL
  for (int at = 0; at < 4; ++at) {
    const int piece = at * warp_lanes + lane_index();
    const std::uint32_t found = matches(pieces.piece[at], both);
    if (piece < bytes_there) bytes[piece] = static_cast<std::uint8_t>(found);
  }
  sync_warp();
  const int word = group * warp_lanes + lane_index();
  if (pieces.whole) return memory.masks[word];
  if (word >= words) return 0;
  std::uint32_t mask = memory.masks[word];
  const int tail = in.tokens % 32;
  if (tail != 0 && (word + 1) % mask_words(in.tokens) == 0) {  // what is beyond them is garbage
    mask &= (1U << tail) - 1;
    memory.masks[word] = mask;
  }
  return mask;
}

// Step 1 for the groups of this warp, whose first has been loaded; returns how many routes they
// have, in all lanes.
MOESIM_DEVICE std::uint32_t find_masks(const AssignArguments& in, const AssignMemory& memory,
                                       const Groups& groups, Pieces pieces, int expert) {
  std::uint32_t count = 0;
  MOESIM_UNROLL(1)
  for (int group = groups.first; group < groups.last; ++group) {
    const Pieces now = pieces;
    if (group + 1 < groups.last) pieces = load_pieces(in, group + 1);
    count += static_cast<std::uint32_t>(popcount(store_masks(in, memory, now, group, expert)));
  }
  return warp_sum(count);
}

// Step 2 for the groups of this warp, whose routes begin at `before` of the list.
MOESIM_DEVICE void list_routes(const AssignArguments& in, const AssignMemory& memory,
                               const Groups& groups, std::uint32_t before) {
  MaskPlace place = moved(in, {}, groups.first * warp_lanes + lane_index());
  MOESIM_UNROLL(1)
  for (int group = groups.first; group < groups.last; ++group) {
    const bool there = place.choice < in.choices;
    std::uint32_t mask = there ? memory.masks[group * warp_lanes + lane_index()] : 0;
    const auto own = static_cast<std::uint32_t>(popcount(mask));
    const std::uint32_t upto = before + warp_scan(own);
    std::uint32_t at = upto - own;
    before = shuffle(upto, warp_lanes - 1);
    if (there && place.word == 0) memory.begin[place.choice] = at;
    MOESIM_UNROLL(1)
    while (mask != 0) {
      const int bit = 31 - leading_zeros(mask & -mask);
      memory.routes[at++] = route_of(place.choice, place.word * 32 + bit);
      mask &= mask - 1;
    }
    place = moved(in, place, warp_lanes);
  }
}

// Steps 1 and 2; false if the list does not fit: then there are the masks.
MOESIM_DEVICE bool list_choices(const AssignArguments& in, const AssignMemory& memory, int expert) {
  const Groups groups = own_groups(in);
  Pieces pieces{};
  if (groups.first < groups.last) pieces = load_pieces(in, groups.first);
  clear_words(memory);  // while they are on their way
  const std::uint32_t of_warp = find_masks(in, memory, groups, pieces, expert);
  const ScanResult scan = scan_warps(of_warp, assign_warps(), memory.warps);
  if (scan.total > static_cast<std::uint32_t>(in.buffered_keys)) return false;
  list_routes(in, memory, groups, scan.before);
  if (thread_index() == 0) memory.begin[in.choices] = scan.total;
  sync_block();
  return true;
}

// One block per expert, assign_threads threads, assign_shared_bytes of shared memory. `stride` is a
// multiple of 32 and `expert` aligned to 16 bytes.
MOESIM_PAIRED_KERNEL(assign_threads)
assign_capacity(AssignArguments in) {
  const int expert = block_index();
  const AssignMemory memory = assign_memory(in);
  bool listed = false;
  if (in.tile_begin != nullptr) {
    clear_words(memory);
    listed = list_tiles(in, memory, expert);
  }
  if (!listed) listed = list_choices(in, memory, expert);
  const KeptRoutes kept =
      listed ? assign_list(in, memory, expert) : assign_masks(in, memory, expert);
  if (thread_index() != 0) return;
  in.kept_rows[expert] = static_cast<std::int32_t>(kept.all);
  if (in.kept_primary != nullptr) {
    in.kept_primary[expert] = static_cast<std::int32_t>(kept.primary);
  }
}

}  // namespace moesim::kernels::routing
