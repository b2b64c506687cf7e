#pragma once

#include "kernels/routing/assign_memory.cuh"

// Capacity assignment on the list of an expert's routes in shared memory, which is in (choice,
// token) order: a thread has the routes of its index and of every block_threads()-th behind.
namespace moesim::kernels::routing {

// A route of the list; assign_shape lets no more than 2^24 tokens by.
MOESIM_DEVICE std::uint32_t route_of(int choice, int token) {
  return static_cast<std::uint32_t>(choice) << 24 | static_cast<std::uint32_t>(token);
}
MOESIM_DEVICE int choice_of(std::uint32_t route) { return static_cast<int>(route >> 24); }
MOESIM_DEVICE int token_of(std::uint32_t route) { return static_cast<int>(route & 0xffffffU); }

MOESIM_DEVICE std::uint32_t list_step() {
  return static_cast<std::uint32_t>(block_threads<assign_threads>());
}
MOESIM_DEVICE int assign_warps() { return block_threads<assign_threads>() / warp_lanes; }

// Where the list is cut: [0, begin) are kept, `quota` of [begin, end), and none behind.
struct ListCut {
  Stage stage;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::uint32_t quota = 0;
};

// Choices before the cut one are kept whole, so that where it ends in the list says whether it
// fits.
MOESIM_DEVICE ListCut find_list_cut(const AssignArguments& in, const AssignMemory& memory) {
  const auto capacity = static_cast<std::uint32_t>(in.capacity);
  int choice = 0;
  int next = in.one_queue ? in.top_k : 1;
  MOESIM_UNROLL(1)
  while (memory.begin[next] <= capacity) choice = next++;
  ListCut cut;
  cut.stage = stage_from(in, choice);
  cut.begin = memory.begin[choice];
  cut.end = memory.begin[next];
  cut.quota = capacity - cut.begin;
  return cut;
}

// The expert's part of the results, and how one route gets its slot.
struct Slots {
  const AssignArguments& in;
  std::int32_t* rows;  // null: not wanted

  MOESIM_DEVICE void place(std::uint32_t route, std::uint32_t slot) const {
    const int choice = choice_of(route);
    const int token = token_of(route);
    in.slot[choice * in.stride + token] = static_cast<std::int32_t>(slot);
    if (rows != nullptr) rows[slot] = token * in.choices + choice;
  }
  MOESIM_DEVICE void clear_from(std::uint32_t kept) const {
    if (rows == nullptr) return;
    MOESIM_UNROLL(1)
    for (int row = static_cast<int>(kept) + thread_index(); row < in.capacity;
         row += block_threads<assign_threads>()) {
      rows[row] = -1;
    }
  }
};

// Keys and, among equal ones, earlier tokens first, as one number each. No two are equal: an expert
// has a token at most once. A thread has those of the cut from `first` on, `first`'s in a register.
struct OrderKeys {
  const AssignMemory& memory;
  std::uint32_t last_token;
  int token_bits;
  std::uint32_t first;
  std::uint32_t end;
  std::uint64_t first_key;

  MOESIM_DEVICE std::uint64_t order_key(std::uint32_t key, std::uint32_t route) const {
    return static_cast<std::uint64_t>(key) << token_bits |
           (last_token - static_cast<std::uint32_t>(token_of(route)));
  }
  MOESIM_DEVICE std::uint64_t at(std::uint32_t place) const {
    return place == first ? first_key : order_key(memory.keys[place], memory.routes[place]);
  }
  template <typename Use>
  MOESIM_DEVICE void visit(Use&& use) const {
    if (first < end) use(first_key);
    MOESIM_UNROLL(1)
    for (std::uint32_t place = first + list_step(); place < end; place += list_step()) {
      use(order_key(memory.keys[place], memory.routes[place]));
    }
  }
};

// The `wanted`-th largest is sought among the `inside` that are in [low, low + 2^bits).
struct Range {
  std::uint64_t low = 0;
  int bits = 0;
  std::uint32_t wanted = 0;
  std::uint32_t inside = 0;

  MOESIM_DEVICE bool has(std::uint64_t order_key) const { return (order_key - low) >> bits == 0; }
};

// All order keys of the cut, and nothing narrower that their keys allow. Each thread brings the
// largest and the smallest key of its routes.
MOESIM_DEVICE Range whole_range(const AssignMemory& memory, const ListCut& cut,
                                const OrderKeys& order_keys, std::uint32_t most,
                                std::uint32_t least) {
  std::uint32_t* largest = memory.warps + 2 * warp_lanes;
  std::uint32_t* smallest = largest + warp_lanes;
  most = warp_max(most);
  least = warp_min(least);
  if (lane_index() == 0) {
    largest[warp_index()] = most;
    smallest[warp_index()] = least;
  }
  sync_block();
  const bool there = lane_index() < assign_warps();
  most = warp_max(there ? largest[lane_index()] : 0);
  least = warp_min(there ? smallest[lane_index()] : 0xffffffffU);
  return {static_cast<std::uint64_t>(least) << order_keys.token_bits,
          32 - leading_zeros(most - least) + order_keys.token_bits, cut.quota, cut.end - cut.begin};
}

// The bin, from the highest down, in which the `wanted`-th lies: each thread has a few, and the
// warp that has the right one looks into it.
MOESIM_DEVICE void find_list_bin(const AssignMemory& memory, std::uint32_t wanted) {
  const int each = (bins + block_threads<assign_threads>() - 1) / block_threads<assign_threads>();
  const int highest = bins - 1 - thread_index() * each;
  std::uint32_t own = 0;
  for (int bin = highest; bin > highest - each && bin >= 0; --bin) own += memory.histogram[bin];
  const std::uint32_t of_warp = warp_sum(own);
  std::uint32_t above = scan_warps(of_warp, assign_warps(), memory.warps).before;
  if (above >= wanted || above + of_warp < wanted) return;  // the same for all lanes
  above += warp_scan(own) - own;
  if (above >= wanted || above + own < wanted) return;
  int bin = highest;
  while (above + memory.histogram[bin] < wanted) above += memory.histogram[bin--];
  memory.shared[found_digit] = static_cast<std::uint32_t>(bin);
  memory.shared[found_above] = above;
  memory.shared[found_count] = memory.histogram[bin];
}

MOESIM_DEVICE void clear_histogram(const AssignMemory& memory) {
  auto* whole = reinterpret_cast<Vector16*>(memory.histogram);
  MOESIM_UNROLL(1)
  for (int four = thread_index(); four < bins / 4; four += block_threads<assign_threads>()) {
    whole[four] = {{0, 0, 0, 0}};
  }
}

MOESIM_DEVICE void clear_words(const AssignMemory& memory) {
  MOESIM_UNROLL(1)
  for (int word = thread_index(); word < cleared_words; word += block_threads<assign_threads>()) {
    memory.counts[word] = 0;
  }
  clear_histogram(memory);
}

// Settles the next digit_bits bits; the histogram is clear.
MOESIM_DEVICE void narrow(const AssignMemory& memory, const OrderKeys& order_keys, Range& range) {
  const int shift = range.bits > digit_bits ? range.bits - digit_bits : 0;
  order_keys.visit([&](std::uint64_t order_key) {
    if (range.has(order_key)) atomic_add(&memory.histogram[(order_key - range.low) >> shift], 1U);
  });
  sync_block();
  find_list_bin(memory, range.wanted);
  sync_block();
  range.low += static_cast<std::uint64_t>(memory.shared[found_digit]) << shift;
  range.bits = shift;
  range.wanted -= memory.shared[found_above];
  range.inside = memory.shared[found_count];
}

// The `wanted`-th of the few that are inside, by comparing each with all.
MOESIM_DEVICE std::uint64_t last_finalist(const AssignMemory& memory, const OrderKeys& order_keys,
                                          const Range& range) {
  order_keys.visit([&](std::uint64_t order_key) {
    if (!range.has(order_key)) return;
    const std::uint32_t place = atomic_add(&memory.shared[cursor], 1U);
    memory.finalists[place] = static_cast<std::uint32_t>(order_key);
    memory.finalists[finalists_most + place] = static_cast<std::uint32_t>(order_key >> 32);
  });
  sync_block();
  if (static_cast<std::uint32_t>(thread_index()) < range.inside) {
    const auto finalist = [&](std::uint32_t place) {
      return static_cast<std::uint64_t>(memory.finalists[finalists_most + place]) << 32 |
             memory.finalists[place];
    };
    const std::uint64_t own = finalist(static_cast<std::uint32_t>(thread_index()));
    std::uint32_t not_smaller = 0;
    MOESIM_UNROLL(1)
    for (std::uint32_t other = 0; other < range.inside; ++other) {
      not_smaller += finalist(other) >= own ? 1 : 0;
    }
    if (not_smaller == range.wanted) {
      memory.shared[cut_low] = static_cast<std::uint32_t>(own);
      memory.shared[cut_high] = static_cast<std::uint32_t>(own >> 32);
    }
  }
  sync_block();
  return static_cast<std::uint64_t>(memory.shared[cut_high]) << 32 | memory.shared[cut_low];
}

// The smallest order key that is kept.
MOESIM_DEVICE std::uint64_t find_last_kept(const AssignMemory& memory, const OrderKeys& order_keys,
                                           Range range) {
  while (true) {
    narrow(memory, order_keys, range);
    if (range.inside == range.wanted) return range.low;  // all of the bin
    if (range.inside <= finalists_most || range.bits == 0) break;
    clear_histogram(memory);
    sync_block();
  }
  return last_finalist(memory, order_keys, range);
}

// Numbers what is kept of the cut in the list's order, from slot cut.begin on.
MOESIM_DEVICE void place_cut(const AssignMemory& memory, const ListCut& cut,
                             const OrderKeys& order_keys, std::uint64_t last_kept,
                             const Slots& slots) {
  std::uint32_t next = cut.begin;
  std::uint32_t* scratch = memory.warps;
  MOESIM_UNROLL(1)
  for (std::uint32_t first = cut.begin; first < cut.end; first += list_step()) {
    const std::uint32_t at = first + static_cast<std::uint32_t>(thread_index());
    const bool keep = at < cut.end && order_keys.at(at) >= last_kept;
    const std::uint32_t votes = ballot(keep);
    const ScanResult scan =
        scan_warps(static_cast<std::uint32_t>(popcount(votes)), assign_warps(), scratch);
    if (keep) {
      slots.place(memory.routes[at],
                  next + scan.before + static_cast<std::uint32_t>(popcount(votes & lanes_below())));
    }
    next += scan.total;
    // The next scan's words are free: the barrier of this one is behind all that read them.
    scratch = scratch == memory.warps ? memory.warps + warp_lanes : memory.warps;
  }
}

// Finds and places what is kept of the cut by key. `key`: of the thread's first route of the cut.
MOESIM_DEVICE void settle_cut(const AssignArguments& in, const AssignMemory& memory,
                              const ListCut& cut, std::uint32_t key, const Slots& slots) {
  const std::uint32_t first = cut.begin + static_cast<std::uint32_t>(thread_index());
  const auto last_token = static_cast<std::uint32_t>(in.tokens - 1);
  OrderKeys order_keys{memory, last_token, 32 - leading_zeros(last_token), first, cut.end, 0};
  std::uint32_t most = 0;
  std::uint32_t least = 0xffffffffU;
  if (first < cut.end) {
    most = least = key;
    order_keys.first_key = order_keys.order_key(key, memory.routes[first]);
  }
  MOESIM_UNROLL(1)
  for (std::uint32_t at = first + list_step(); at < cut.end; at += list_step()) {
    const std::uint32_t route = memory.routes[at];
    const std::uint32_t other = key_of(in, cut.stage, choice_of(route), token_of(route));
    memory.keys[at] = other;
    most = other > most ? other : most;
    least = other < least ? other : least;
  }
  const Range range = whole_range(memory, cut, order_keys, most, least);
  place_cut(memory, cut, order_keys, find_last_kept(memory, order_keys, range), slots);
}

// Assigns the slots of `expert` from its list. `begin` of each choice and of the one behind the
// last is known, the histogram and `cursor` are 0, and a barrier is behind all that.
MOESIM_DEVICE KeptRoutes assign_list(const AssignArguments& in, const AssignMemory& memory,
                                     int expert) {
  const auto capacity = static_cast<std::uint32_t>(in.capacity);
  const std::uint32_t routes = memory.begin[in.choices];
  const std::uint32_t kept = routes < capacity ? routes : capacity;
  const Slots slots{in, in.row_route == nullptr
                            ? nullptr
                            : in.row_route + static_cast<std::int64_t>(expert) * in.capacity};
  ListCut cut;
  std::uint32_t ordered = kept;  // so many have their index as slot
  std::uint32_t key = 0;
  bool by_key = false;
  if (kept < routes) {
    cut = find_list_cut(in, memory);
    by_key = cut.quota != 0 && !cut.stage.by_position;
    const std::uint32_t first = cut.begin + static_cast<std::uint32_t>(thread_index());
    if (by_key) ordered = cut.begin;
    if (by_key && first < cut.end) {  // on its way while the others are placed
      const std::uint32_t route = memory.routes[first];
      key = key_of(in, cut.stage, choice_of(route), token_of(route));
    }
  }
  MOESIM_UNROLL(1)
  for (auto at = static_cast<std::uint32_t>(thread_index()); at < ordered; at += list_step()) {
    slots.place(memory.routes[at], at);
  }
  slots.clear_from(kept);
  if (by_key) settle_cut(in, memory, cut, key, slots);
  const std::uint32_t primary = memory.begin[in.top_k];
  return {kept, kept < primary ? kept : primary};
}

}  // namespace moesim::kernels::routing
