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

enum class QueueKind { token_max, position, random, nominee, own_score, own_weight, token_order };
// Scope, kind, top_k (own_* only), choice.
using QueueKey = std::tuple<CapacityScope, QueueKind, int, int>;

// The length of each queue, and the position of each route in its expert's queue, 0 first, once
// somebody needs it. Queues are per domain, the set of tokens that share an expert's slots: the
// tokens of one rank, or of the whole group.
struct Queue {
  QueueKey key;
  std::vector<std::int32_t> length;  // [domain, expert]
  std::vector<std::int32_t> place;   // [token]
  bool counted = false, placed = false;
};

// The queues of a ChoiceTable, computed on demand. Queues do not depend on the capacity: a route is
// kept if its position is below the free slots of its expert, so many capacity factors, numbers of
// choices and rectifications share one set of queues.
class RouteOrders {
 public:
  // Removes all queues but keeps their memory. `rank_keys[rank]` are the streams of the keys of
  // Priority::random. The table must outlive this object's use. `decisions`: how many capacities,
  // numbers of choices or rectifications will be asked for; it changes the time, not the results.
  void reset(const ChoiceTable& table, std::vector<StreamKey> rank_keys, std::size_t decisions = 1);

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

  // keep[token] = 1 for the tokens of a domain whose position in `queue` is below limit[expert],
  // otherwise 0. A single decision needs no positions: the routes of a queue that exceeds its limit
  // are cut at the key of the last one kept.
  void flag_first(const Queue& queue, int domain, const std::int32_t* limit, std::uint8_t* keep,
                  const TileKernels& kernels);

 private:
  struct CachedOrder {
    std::vector<std::uint32_t> order;  // [token], each domain's tokens in its own range
    bool valid = false;
  };

  Queue& slot(const QueueKey& key);
  const std::vector<std::uint32_t>& sorted_tokens(CapacityScope scope, QueueKind kind);
  const std::vector<std::uint32_t>& sorted_nominees(CapacityScope scope, int choice);
  void count(Queue& queue);
  void find_places(Queue& queue);
  void prepare(Queue& queue) const;
  // `order` null: in the order of tokens.
  void enqueue(const std::uint32_t* order, Queue& queue);
  void enqueue_two(const std::uint32_t* order, Queue& first, Queue& second);
  void select(const Queue& queue, int domain, const std::int32_t* limit, std::uint8_t* keep,
              const TileKernels& kernels);
  void make_own(CapacityScope scope, QueueKind kind, int top_k);
  // order_ = the routes (token, choice) of `count` tokens from `begin` on, the first to keep first.
  void order_routes(QueueKind kind, std::size_t begin, std::size_t count, std::size_t width);

  const ChoiceTable* table_ = nullptr;
  std::vector<StreamKey> rank_keys_;
  std::size_t decisions_ = 1;
  std::map<QueueKey, Queue> queues_;
  std::map<std::pair<CapacityScope, QueueKind>, CachedOrder> orders_;
  std::vector<std::uint32_t> keys_, order_;
  SortScratch scratch_;
  // For select(): the routes of the queues that exceed their limits, one queue after another.
  std::vector<std::uint32_t> next_, step_;  // [expert]
  std::vector<float> waiting_key_;
  std::vector<std::uint32_t> waiting_;
};

}  // namespace moesim::routing
