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

void RouteOrders::reset(const ChoiceTable& table, std::vector<StreamKey> rank_keys) {
  table_ = &table;
  rank_keys_ = std::move(rank_keys);
  for (auto& [key, cached] : queues_) cached.valid = false;
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

RouteOrders::Cached& RouteOrders::slot(const Key& key) { return queues_[key]; }

const std::vector<std::uint32_t>& RouteOrders::sorted_tokens(CapacityScope scope, Kind kind) {
  CachedOrder& cached = orders_[{scope, kind}];
  if (cached.valid) return cached.order;
  const auto tokens = static_cast<std::size_t>(table_->tokens());
  cached.order.resize(tokens);
  keys_.resize(tokens);
  std::uint32_t least = 0;
  std::uint32_t most = std::numeric_limits<std::uint32_t>::max();
  if (kind == Kind::token_max) {
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

void RouteOrders::prepare(CapacityScope scope, Queue& queue) const {
  queue.place.resize(static_cast<std::size_t>(table_->tokens()));
  queue.length.assign(
      static_cast<std::size_t>(domains(scope)) * static_cast<std::size_t>(table_->experts()), 0);
}

void RouteOrders::enqueue(CapacityScope scope, const std::uint32_t* order, int choice,
                          Queue& queue) {
  const auto experts = static_cast<std::size_t>(table_->experts());
  const std::uint16_t* expert = table_->expert(choice);
  prepare(scope, queue);
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
void RouteOrders::enqueue_two(CapacityScope scope, const std::uint32_t* order, int choice,
                              Queue& first, Queue& second) {
  const auto experts = static_cast<std::size_t>(table_->experts());
  const std::uint16_t* first_expert = table_->expert(choice);
  const std::uint16_t* second_expert = table_->expert(choice + 1);
  prepare(scope, first);
  prepare(scope, second);
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

const Queue& RouteOrders::by_priority(CapacityScope scope, Priority priority, int choice) {
  const Kind kind = priority == Priority::token_max  ? Kind::token_max
                    : priority == Priority::position ? Kind::position
                                                     : Kind::random;
  Cached& cached = slot({scope, kind, 0, choice});
  if (cached.valid) return cached.queue;
  const std::uint32_t* order = kind == Kind::position ? nullptr : sorted_tokens(scope, kind).data();
  cached.valid = true;
  if (choice + 1 == table_->choices()) {
    enqueue(scope, order, choice, cached.queue);
    return cached.queue;
  }
  Cached& next = slot({scope, kind, 0, choice + 1});
  enqueue_two(scope, order, choice, cached.queue, next.queue);
  next.valid = true;
  return cached.queue;
}

const Queue& RouteOrders::by_nominee(CapacityScope scope, int choice) {
  Cached& cached = slot({scope, Kind::nominee, 0, choice});
  if (cached.valid) return cached.queue;
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
  enqueue(scope, order_.data(), choice, cached.queue);
  cached.valid = true;
  return cached.queue;
}

const Queue& RouteOrders::by_own_key(CapacityScope scope, Priority priority, int top_k,
                                     int choice) {
  const Kind kind = priority == Priority::own_weight    ? Kind::own_weight
                    : priority == Priority::token_order ? Kind::token_order
                                                        : Kind::own_score;
  Cached& cached = slot({scope, kind, top_k, choice});
  if (!cached.valid) make_own(scope, kind, top_k);
  return cached.queue;
}

void RouteOrders::order_routes(Kind kind, std::size_t begin, std::size_t count, std::size_t width) {
  order_.resize(count * width);
  if (kind == Kind::token_order) {
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
      keys_[token * width + choice] = bits_of(kind == Kind::own_weight ? own / whole : own);
    }
  }
  sort_descending(keys_.data(), count * width, 0, bits_of_one, order_.data(), scratch_);
}

void RouteOrders::make_own(CapacityScope scope, Kind kind, int top_k) {
  const auto experts = static_cast<std::size_t>(table_->experts());
  const auto width = static_cast<std::size_t>(top_k);
  std::vector<Queue*> queues;
  for (int choice = 0; choice < top_k; ++choice) {
    Cached& cached = slot({scope, kind, top_k, choice});
    cached.valid = true;
    cached.queue.place.resize(static_cast<std::size_t>(table_->tokens()));
    queues.push_back(&cached.queue);
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
