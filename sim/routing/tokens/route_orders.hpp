#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "sim/base/random.hpp"
#include "sim/routing/rules/router_config.hpp"
#include "sim/routing/tokens/choice_table.hpp"

namespace moesim::routing {

// `order` = the indices of `keys`, largest key first, equal keys by lower index. All keys are in
// [least, most]; a narrower range is faster. Radix sort: the time does not depend on the values.
// The scratch vectors never shrink.
struct SortScratch {
  std::vector<std::uint64_t> items, spare;
  std::vector<std::uint32_t> words, histogram;
};
void sort_descending(const std::uint32_t* keys, std::size_t count, std::uint32_t least,
                     std::uint32_t most, std::uint32_t* order, SortScratch& scratch);

// The position of each route in its expert's queue, 0 first, and the length of each queue. Queues
// are per domain, the set of tokens that share an expert's slots: the tokens of one rank, or of the
// whole group.
struct Queue {
  std::vector<std::int32_t> place;   // [token]
  std::vector<std::int32_t> length;  // [domain, expert]
};

// The queues of a ChoiceTable, computed on demand. Queues do not depend on the capacity: a route is
// kept if its position is below the free slots of its expert, so many capacity factors, numbers of
// choices and rectifications share one set of queues.
class RouteOrders {
 public:
  // Removes all queues but keeps their memory. `rank_keys[rank]` are the streams of the keys of
  // Priority::random. The table must outlive this object's use.
  void reset(const ChoiceTable& table, std::vector<StreamKey> rank_keys);

  int domains(CapacityScope scope) const;
  std::int64_t domain_begin(CapacityScope scope, int domain) const;
  std::int64_t domain_end(CapacityScope scope, int domain) const;

  // Choice `choice` with a policy that processes one choice after another (not own_score).
  const Queue& by_priority(CapacityScope scope, Priority priority, int choice);
  // The nominees of choice `choice`, best probability for that expert first.
  const Queue& by_nominee(CapacityScope scope, int choice);
  // Choice `choice` in one queue per expert over choices [0, top_k), best probability first
  // (Priority::own_score), best share of the choices' probability (own_weight) or the lower token
  // (token_order); `length` counts the routes of all these choices.
  const Queue& by_own_key(CapacityScope scope, Priority priority, int top_k, int choice);

 private:
  enum class Kind { token_max, position, random, nominee, own_score, own_weight, token_order };
  using Key = std::tuple<CapacityScope, Kind, int, int>;  // top_k (own_* only), choice
  struct Cached {
    Queue queue;
    bool valid = false;
  };
  struct CachedOrder {
    std::vector<std::uint32_t> order;  // [token], each domain's tokens in its own range
    bool valid = false;
  };

  Cached& slot(const Key& key);
  const std::vector<std::uint32_t>& sorted_tokens(CapacityScope scope, Kind kind);
  void prepare(CapacityScope scope, Queue& queue) const;
  // `order` null: in the order of tokens.
  void enqueue(CapacityScope scope, const std::uint32_t* order, int choice, Queue& queue);
  void enqueue_two(CapacityScope scope, const std::uint32_t* order, int choice, Queue& first,
                   Queue& second);
  void make_own(CapacityScope scope, Kind kind, int top_k);
  // order_ = the routes (token, choice) of `count` tokens from `begin` on, the first to keep first.
  void order_routes(Kind kind, std::size_t begin, std::size_t count, std::size_t width);

  const ChoiceTable* table_ = nullptr;
  std::vector<StreamKey> rank_keys_;
  std::map<Key, Cached> queues_;
  std::map<std::pair<CapacityScope, Kind>, CachedOrder> orders_;
  std::vector<std::uint32_t> keys_, order_;
  SortScratch scratch_;
};

}  // namespace moesim::routing
