#include "sim/routing/tokens/route_orders.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

namespace moesim::routing {

namespace {

constexpr int most_digit_bits = 13;  // a histogram of 32 KiB stays in the first-level cache
constexpr int index_bits = 19;
constexpr std::uint32_t bits_of_one = 0x3f800000;  // of the float 1: the largest probability

// Probabilities are not negative, so their bits have the same order.
std::uint32_t bits_of(float probability) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &probability, sizeof bits);
  return bits;
}

std::uint32_t whole_tiles(std::int32_t tokens) {
  return static_cast<std::uint32_t>(tokens + tile_tokens - 1) / tile_tokens * tile_tokens;
}

std::uint32_t starts(std::uint32_t* bins, std::size_t count) {
  std::uint32_t start = 0;
  for (std::size_t bin = 0; bin < count; ++bin) start += std::exchange(bins[bin], start);
  return start;
}

// Two digits: the input of the second pass, the high digit and the index, fits into one word.
void sort_in_two(const std::uint32_t* keys, std::size_t count, std::uint32_t most, int bits,
                 std::uint32_t* order, SortScratch& scratch) {
  const int low_bits = bits / 2;
  const std::size_t low_bins = std::size_t{1} << low_bits;
  const std::size_t high_bins = std::size_t{1} << (bits - low_bits);
  scratch.words.resize(std::max(scratch.words.size(), count));
  scratch.histogram.assign(low_bins + high_bins, 0);
  std::uint32_t* low = scratch.histogram.data();
  std::uint32_t* high = low + low_bins;
  for (std::size_t index = 0; index < count; ++index) {
    const std::uint32_t distance = most - keys[index];
    ++low[distance & (low_bins - 1)];
    ++high[distance >> low_bits];
  }
  starts(low, low_bins);
  starts(high, high_bins);
  for (std::size_t index = 0; index < count; ++index) {
    const std::uint32_t distance = most - keys[index];
    scratch.words[low[distance & (low_bins - 1)]++] =
        (distance >> low_bits) << index_bits | static_cast<std::uint32_t>(index);
  }
  for (std::size_t index = 0; index < count; ++index) {
    const std::uint32_t item = scratch.words[index];
    order[high[item >> index_bits]++] = item & ((1U << index_bits) - 1);
  }
}

void sort_in_many(const std::uint32_t* keys, std::size_t count, std::uint32_t most, int bits,
                  std::uint32_t* order, SortScratch& scratch) {
  const int passes = std::max(1, (bits + most_digit_bits - 1) / most_digit_bits);
  const int digit_bits = (bits + passes - 1) / passes;
  const std::size_t bins = std::size_t{1} << digit_bits;
  scratch.items.resize(std::max(scratch.items.size(), count));
  scratch.spare.resize(std::max(scratch.spare.size(), count));
  for (std::size_t index = 0; index < count; ++index) {
    scratch.items[index] = std::uint64_t{most - keys[index]} << 32 | index;
  }
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = 32 + pass * digit_bits;
    scratch.histogram.assign(bins, 0);
    std::uint32_t* next = scratch.histogram.data();
    for (std::size_t index = 0; index < count; ++index) {
      ++next[(scratch.items[index] >> shift) & (bins - 1)];
    }
    starts(next, bins);
    for (std::size_t index = 0; index < count; ++index) {
      const std::uint64_t item = scratch.items[index];
      scratch.spare[next[(item >> shift) & (bins - 1)]++] = item;
    }
    std::swap(scratch.items, scratch.spare);
  }
  for (std::size_t index = 0; index < count; ++index) {
    order[index] = static_cast<std::uint32_t>(scratch.items[index]);
  }
}

}  // namespace

void sort_descending(const std::uint32_t* keys, std::size_t count, std::uint32_t least,
                     std::uint32_t most, std::uint32_t* order, SortScratch& scratch) {
  const int bits = std::bit_width(most - least);
  if (bits <= 2 * most_digit_bits && count <= std::size_t{1} << index_bits) {
    sort_in_two(keys, count, most, bits, order, scratch);
  } else {
    sort_in_many(keys, count, most, bits, order, scratch);
  }
}

void RouteOrders::reset(const ChoiceTable& table, std::vector<StreamKey> rank_keys,
                        std::size_t decisions) {
  table_ = &table;
  rank_keys_ = std::move(rank_keys);
  decisions_ = decisions;
  for (auto& [key, queue] : queues_) queue.counted = queue.placed = false;
  for (auto& [key, cached] : orders_) cached.valid = false;
}

int RouteOrders::domains(CapacityScope scope) const {
  return scope == CapacityScope::source ? table_->ranks() : 1;
}

std::int64_t RouteOrders::domain_begin(CapacityScope scope, int domain) const {
  return scope == CapacityScope::source ? table_->rank_begin(domain) : 0;
}

std::int64_t RouteOrders::domain_end(CapacityScope scope, int domain) const {
  return scope == CapacityScope::source ? table_->rank_begin(domain + 1) : table_->tokens();
}

Queue& RouteOrders::slot(const QueueKey& key) {
  Queue& queue = queues_[key];
  queue.key = key;
  return queue;
}

const std::vector<std::uint32_t>& RouteOrders::sorted_tokens(CapacityScope scope, QueueKind kind) {
  CachedOrder& cached = orders_[{scope, kind}];
  if (cached.valid) return cached.order;
  const auto tokens = static_cast<std::size_t>(table_->tokens());
  cached.order.resize(tokens);
  keys_.resize(tokens);
  std::uint32_t least = 0;
  std::uint32_t most = std::numeric_limits<std::uint32_t>::max();
  if (kind == QueueKind::token_max) {
    // The largest of E shares of 1 is at least 1 / E; one step less for rounding.
    if (table_->holds_best()) least = bits_of(1.0F / static_cast<float>(table_->experts())) - 1;
    most = bits_of_one;
    std::transform(table_->max_probability(), table_->max_probability() + tokens, keys_.begin(),
                   bits_of);
  } else {
    for (int rank = 0; rank < table_->ranks(); ++rank) {
      const std::int64_t begin = table_->rank_begin(rank);
      const std::int64_t count = table_->rank_begin(rank + 1) - begin;
      for (std::int64_t token = 0; token < count; token += 4) {
        const PhiloxBlock block = philox_block(rank_keys_[static_cast<std::size_t>(rank)],
                                               static_cast<std::uint64_t>(token / 4));
        for (std::int64_t word = 0; word < 4 && token + word < count; ++word) {
          keys_[static_cast<std::size_t>(begin + token + word)] =
              block[static_cast<std::size_t>(word)];
        }
      }
    }
  }
  for (int domain = 0; domain < domains(scope); ++domain) {
    const std::int64_t begin = domain_begin(scope, domain);
    const auto count = static_cast<std::size_t>(domain_end(scope, domain) - begin);
    std::uint32_t* order = cached.order.data() + begin;
    sort_descending(keys_.data() + begin, count, least, most, order, scratch_);
    if (begin == 0) continue;
    for (std::size_t index = 0; index < count; ++index) {
      order[index] += static_cast<std::uint32_t>(begin);
    }
  }
  cached.valid = true;
  return cached.order;
}

const std::vector<std::uint32_t>& RouteOrders::sorted_nominees(CapacityScope scope, int choice) {
  const auto tokens = static_cast<std::size_t>(table_->tokens());
  keys_.resize(tokens);
  order_.resize(tokens);
  std::transform(table_->probability(choice), table_->probability(choice) + tokens, keys_.begin(),
                 bits_of);
  for (int domain = 0; domain < domains(scope); ++domain) {
    const std::int64_t begin = domain_begin(scope, domain);
    const auto count = static_cast<std::size_t>(domain_end(scope, domain) - begin);
    std::uint32_t* order = order_.data() + begin;
    sort_descending(keys_.data() + begin, count, 0, bits_of_one, order, scratch_);
    for (std::size_t index = 0; index < count; ++index) {
      order[index] += static_cast<std::uint32_t>(begin);
    }
  }
  return order_;
}

void RouteOrders::prepare(Queue& queue) const {
  const CapacityScope scope = std::get<CapacityScope>(queue.key);
  queue.length.assign(
      static_cast<std::size_t>(domains(scope)) * static_cast<std::size_t>(table_->experts()), 0);
  queue.counted = true;
}

void RouteOrders::count(Queue& queue) {
  if (queue.counted) return;
  const auto [scope, kind, top_k, choice] = queue.key;
  const std::uint16_t* expert = table_->expert(choice);
  prepare(queue);
  std::int32_t* length = queue.length.data();
  for (int domain = 0; domain < domains(scope); ++domain, length += table_->experts()) {
    const std::int64_t end = domain_end(scope, domain);
    for (std::int64_t token = domain_begin(scope, domain); token < end; ++token) {
      ++length[expert[token]];
    }
  }
}

void RouteOrders::enqueue(const std::uint32_t* order, Queue& queue) {
  const auto [scope, kind, top_k, choice] = queue.key;
  const auto experts = static_cast<std::size_t>(table_->experts());
  const std::uint16_t* expert = table_->expert(choice);
  prepare(queue);
  queue.place.resize(static_cast<std::size_t>(table_->tokens()));
  queue.placed = true;
  std::int32_t* place = queue.place.data();
  for (int domain = 0; domain < domains(scope); ++domain) {
    std::int32_t* length = queue.length.data() + static_cast<std::size_t>(domain) * experts;
    const auto begin = static_cast<std::size_t>(domain_begin(scope, domain));
    const auto end = static_cast<std::size_t>(domain_end(scope, domain));
    for (std::size_t index = begin; index < end; ++index) {
      const std::size_t token = order == nullptr ? index : order[index];
      place[token] = length[expert[token]]++;
    }
  }
}

// Two choices in one pass over the order: the random accesses to tokens are the expensive part.
void RouteOrders::enqueue_two(const std::uint32_t* order, Queue& first, Queue& second) {
  const auto [scope, kind, top_k, choice] = first.key;
  const auto experts = static_cast<std::size_t>(table_->experts());
  const std::uint16_t* first_expert = table_->expert(choice);
  const std::uint16_t* second_expert = table_->expert(choice + 1);
  for (Queue* queue : {&first, &second}) {
    prepare(*queue);
    queue->place.resize(static_cast<std::size_t>(table_->tokens()));
    queue->placed = true;
  }
  std::int32_t* first_place = first.place.data();
  std::int32_t* second_place = second.place.data();
  for (int domain = 0; domain < domains(scope); ++domain) {
    std::int32_t* first_length = first.length.data() + static_cast<std::size_t>(domain) * experts;
    std::int32_t* second_length = second.length.data() + static_cast<std::size_t>(domain) * experts;
    const auto begin = static_cast<std::size_t>(domain_begin(scope, domain));
    const auto end = static_cast<std::size_t>(domain_end(scope, domain));
    for (std::size_t index = begin; index < end; ++index) {
      const std::size_t token = order == nullptr ? index : order[index];
      first_place[token] = first_length[first_expert[token]]++;
      second_place[token] = second_length[second_expert[token]]++;
    }
  }
}

void RouteOrders::find_places(Queue& queue) {
  if (queue.placed) return;
  const auto [scope, kind, top_k, choice] = queue.key;
  if (kind == QueueKind::nominee) return enqueue(sorted_nominees(scope, choice).data(), queue);
  const std::uint32_t* order =
      kind == QueueKind::position ? nullptr : sorted_tokens(scope, kind).data();
  if (choice + 1 == table_->choices()) return enqueue(order, queue);
  enqueue_two(order, queue, slot({scope, kind, 0, choice + 1}));
}

const Queue& RouteOrders::by_priority(CapacityScope scope, Priority priority, int choice) {
  const QueueKind kind = priority == Priority::token_max  ? QueueKind::token_max
                         : priority == Priority::position ? QueueKind::position
                                                          : QueueKind::random;
  Queue& queue = slot({scope, kind, 0, choice});
  count(queue);
  return queue;
}

const Queue& RouteOrders::by_nominee(CapacityScope scope, int choice) {
  Queue& queue = slot({scope, QueueKind::nominee, 0, choice});
  count(queue);
  return queue;
}

const Queue& RouteOrders::by_own_key(CapacityScope scope, Priority priority, int top_k,
                                     int choice) {
  const QueueKind kind = priority == Priority::own_weight    ? QueueKind::own_weight
                         : priority == Priority::token_order ? QueueKind::token_order
                                                             : QueueKind::own_score;
  Queue& queue = slot({scope, kind, top_k, choice});
  if (!queue.placed) make_own(scope, kind, top_k);
  return queue;
}

void RouteOrders::flag_first(const Queue& queue, int domain, const std::int32_t* limit,
                             std::uint8_t* keep, const TileKernels& kernels) {
  const auto [scope, kind, top_k, choice] = queue.key;
  const bool by_key = kind == QueueKind::token_max || kind == QueueKind::nominee;
  if (by_key && decisions_ == 1) return select(queue, domain, limit, keep, kernels);
  find_places(slot(queue.key));
  const std::int64_t begin = domain_begin(scope, domain);
  const auto tokens = static_cast<std::size_t>(domain_end(scope, domain) - begin);
  kernels.flag_places({tokens, queue.place.data() + begin, table_->expert(choice) + begin}, limit,
                      table_->experts(), keep + begin);
}

// The lists have the format of find_cut. Routes of other queues are written to place 0 one after
// another: that costs less than a branch.
void RouteOrders::select(const Queue& queue, int domain, const std::int32_t* limit,
                         std::uint8_t* keep, const TileKernels& kernels) {
  const auto [scope, kind, top_k, choice] = queue.key;
  const auto experts = static_cast<std::size_t>(table_->experts());
  const std::int32_t* length = queue.length.data() + static_cast<std::size_t>(domain) * experts;
  const auto is_cut = [&](std::size_t expert) { return length[expert] > limit[expert]; };
  next_.assign(experts, 0);
  step_.assign(experts, 0);
  std::uint32_t begin = tile_tokens;
  for (std::size_t expert = 0; expert < experts; ++expert) {
    if (!is_cut(expert)) continue;
    next_[expert] = begin;
    step_[expert] = 1;
    begin += whole_tiles(length[expert]);
  }
  if (waiting_.size() < begin) {
    waiting_.resize(begin);
    waiting_key_.resize(begin);
  }
  const std::uint16_t* expert_of = table_->expert(choice);
  const float* key =
      kind == QueueKind::nominee ? table_->probability(choice) : table_->max_probability();
  const auto first = static_cast<std::size_t>(domain_begin(scope, domain));
  const auto last = static_cast<std::size_t>(domain_end(scope, domain));
  std::fill(keep + first, keep + last, std::uint8_t{1});
  for (std::size_t token = first; token < last; ++token) {
    const std::size_t expert = expert_of[token];
    const std::uint32_t at = next_[expert];
    waiting_[at] = static_cast<std::uint32_t>(token);
    waiting_key_[at] = key[token];
    next_[expert] = at + step_[expert];
  }
  for (std::size_t expert = 0; expert < experts; ++expert) {
    if (!is_cut(expert)) continue;
    const auto count = static_cast<std::size_t>(length[expert]);
    const std::size_t start = next_[expert] - count;
    const float* keys = waiting_key_.data() + start;
    std::fill(waiting_key_.data() + next_[expert],
              waiting_key_.data() + start + whole_tiles(length[expert]), 0.0F);
    const Cut cut = kernels.find_cut(keys, count, static_cast<std::size_t>(limit[expert]));
    for (std::size_t at = 0; at < count; ++at) {
      keep[waiting_[start + at]] = cut.takes(keys[at], at) ? 1 : 0;
    }
  }
}

void RouteOrders::order_routes(QueueKind kind, std::size_t begin, std::size_t count,
                               std::size_t width) {
  order_.resize(count * width);
  if (kind == QueueKind::token_order) {
    std::iota(order_.begin(), order_.end(), 0U);
    return;
  }
  keys_.resize(count * width);
  for (std::size_t token = 0; token < count; ++token) {
    float whole = 0;
    for (std::size_t choice = 0; choice < width; ++choice) {
      whole += table_->probability(static_cast<int>(choice))[begin + token];
    }
    for (std::size_t choice = 0; choice < width; ++choice) {
      const float own = table_->probability(static_cast<int>(choice))[begin + token];
      keys_[token * width + choice] = bits_of(kind == QueueKind::own_weight ? own / whole : own);
    }
  }
  sort_descending(keys_.data(), count * width, 0, bits_of_one, order_.data(), scratch_);
}

void RouteOrders::make_own(CapacityScope scope, QueueKind kind, int top_k) {
  const auto experts = static_cast<std::size_t>(table_->experts());
  const auto width = static_cast<std::size_t>(top_k);
  std::vector<Queue*> queues;
  for (int choice = 0; choice < top_k; ++choice) {
    Queue& queue = slot({scope, kind, top_k, choice});
    queue.counted = queue.placed = true;
    queue.place.resize(static_cast<std::size_t>(table_->tokens()));
    queues.push_back(&queue);
  }
  std::vector<std::int32_t>& length = queues[0]->length;
  length.assign(static_cast<std::size_t>(domains(scope)) * experts, 0);
  for (int domain = 0; domain < domains(scope); ++domain) {
    const auto begin = static_cast<std::size_t>(domain_begin(scope, domain));
    const auto count = static_cast<std::size_t>(domain_end(scope, domain)) - begin;
    order_routes(kind, begin, count, width);
    for (const std::uint32_t route : order_) {
      const std::size_t token = begin + route / width;
      const std::size_t choice = route % width;
      const std::uint16_t expert = table_->expert(static_cast<int>(choice))[token];
      queues[choice]->place[token] = length[static_cast<std::size_t>(domain) * experts + expert]++;
    }
  }
  for (Queue* queue : queues) queue->length = queues[0]->length;
}

}  // namespace moesim::routing
