// expert-choice: each expert takes its C best tokens by g (Zhou et al. 2022).
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/units.hpp"
#include "sim/routing/groups/kind_router.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"
#include "sim/routing/tokens/column_lists.hpp"
#include "sim/routing/tokens/tile_rows.hpp"

namespace moesim::routing {

namespace {

// Each expert takes its C best tokens by g (Zhou et al. 2022), ties: lower tokens first; among the
// tokens of one GPU, or with `group` scope among those of all GPUs together. The "routes" of a
// token are those to its k best experts.
class ExpertChoiceRouter final : public KindRouter {
 public:
  explicit ExpertChoiceRouter(const KindShape& shape)
      : shape_(shape), lists_(shape.experts, shape.kernels) {}

  void decide(const GroupLogits& logits, const RouterContext& context) override;
  void collect(RoutedGroup& group) override;

 private:
  // The tokens that share an expert's slots: those of ranks [first, last).
  struct Domain {
    int first = 0, last = 0;
    std::size_t tokens = 0;
    std::int64_t slots = 0;
    std::size_t taken() const { return std::min(static_cast<std::size_t>(slots), tokens); }
  };
  void route_domain(const GroupLogits& logits, const Domain& domain);
  void read(const GroupLogits& logits, const Domain& domain);
  void read_block(const GroupLogits& logits, int rank, std::int64_t first, std::size_t at);
  void choose_best(float* tile, float* sum, std::size_t at);
  void take(const GroupLogits& logits, const Domain& domain);
  void count_rows(const GroupLogits& logits, const Domain& domain, std::size_t expert,
                  std::size_t slots);
  void keep(std::size_t expert, std::size_t slots);
  void settle(const Domain& domain);
  void count_demand(const Domain& domain);

  KindShape shape_;
  TileRows block_, scratch_;
  // For one domain: each token's sum of exponentials, and [choice, token] of its best experts.
  std::vector<float> sum_;
  std::vector<std::uint16_t> best_;
  std::vector<float> best_probability_;
  std::size_t stride_ = 0;
  ColumnLists lists_;
  std::vector<std::uint16_t> takers_;  // [token]: number of experts that took it
  // [taker, token] in the order of experts, as TakenTokens has them.
  std::vector<std::uint64_t> taken_;
  unsigned slot_bits_ = 0;
  std::size_t rows_ = 0;         // there is room for as many takers
  std::size_t most_takers_ = 0;  // of any token
  std::vector<float> scratch_of_takers_;
  // The routes of a group, as RoutedGroup has them, domain by domain: each has its own number of
  // choices.
  struct Sorted {
    std::size_t first = 0, tokens = 0, choices = 0;
  };
  std::vector<Sorted> sorted_;
  std::size_t group_stride_ = 0;
  std::vector<std::uint16_t> expert_;
  std::vector<float> probability_, weight_;
  std::vector<std::int32_t> slot_;
  std::vector<std::int64_t> capacity_;  // [rank]
  std::size_t group_tokens_ = 0;
};

void ExpertChoiceRouter::decide(const GroupLogits& logits, const RouterContext& /*context*/) {
  outcome_ = empty_outcome(shape_);
  capacity_.clear();
  group_tokens_ = 0;
  group_stride_ = static_cast<std::size_t>(logits.all_tokens()) + tile_tokens;
  sorted_.clear();
  Domain group{0, shape_.ranks};
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    const std::int64_t tokens = logits.tokens(rank);
    const std::int64_t slots = shape_.config.capacity(tokens, shape_.experts);
    capacity_.push_back(slots);
    outcome_.capacity = std::max(outcome_.capacity, slots);
    group.tokens += static_cast<std::size_t>(tokens);
    group.slots += slots;
    if (shape_.config.capacity_scope == CapacityScope::group) continue;
    route_domain(logits, {rank, rank + 1, static_cast<std::size_t>(tokens), slots});
  }
  if (shape_.config.capacity_scope == CapacityScope::group) route_domain(logits, group);
  outcome_.exchanged_capacity =
      *std::max_element(outcome_.kept_rows.begin(), outcome_.kept_rows.end());
}

template <typename Value>
void grow(std::vector<Value>& values, std::size_t size) {
  if (values.size() < size) values.resize(size);
}

void ExpertChoiceRouter::route_domain(const GroupLogits& logits, const Domain& domain) {
  stride_ = domain.tokens + tile_tokens;
  grow(sum_, domain.tokens + block_tokens);
  lists_.start(domain.tokens, domain.taken(), sum_.data());
  read(logits, domain);
  if (!lists_.settle()) {
    read(logits, domain);
    lists_.settle();
  }
  take(logits, domain);
  settle(domain);
  if (!shape_.keep_routes) count_demand(domain);
  group_tokens_ += domain.tokens;
}

void ExpertChoiceRouter::read(const GroupLogits& logits, const Domain& domain) {
  const auto experts = static_cast<std::size_t>(shape_.experts);
  const auto top_k = static_cast<std::size_t>(shape_.config.top_k);
  grow(best_, top_k * stride_);
  grow(best_probability_, top_k * stride_);
  block_.grow(block_tiles * experts);
  scratch_.grow(experts);
  std::size_t begin = 0;
  for (int rank = domain.first; rank < domain.last; ++rank) {
    const std::int64_t count = logits.tokens(rank);
    for (std::int64_t token = 0; token < count; token += block_tokens) {
      read_block(logits, rank, token, begin + static_cast<std::size_t>(token));
    }
    begin += static_cast<std::size_t>(count);
  }
}

// The first is `at` in the domain. Tiles behind the rank's last one keep what was in them.
void ExpertChoiceRouter::read_block(const GroupLogits& logits, int rank, std::int64_t first,
                                    std::size_t at) {
  const auto valid =
      static_cast<int>(std::min<std::int64_t>(block_tokens, logits.tokens(rank) - first));
  const std::size_t row = static_cast<std::size_t>(shape_.experts) * tile_tokens;
  for (int place = 0; place < valid; place += tile_tokens) {
    float* tile = block_.data() + static_cast<std::size_t>(place / tile_tokens) * row;
    const std::size_t to = at + static_cast<std::size_t>(place);
    float* sum = sum_.data() + to;
    logits.fill_unchecked(rank, first + place, tile);
    choose_best(tile, sum, to);
    const int here = std::min(tile_tokens, valid - place);
    if (std::any_of(sum, sum + here, [](float value) { return std::isnan(value); })) {
      logits.fill_tile(rank, first + place, tile);
      choose_best(tile, sum, to);
    }
  }
  lists_.add({block_.data(), sum_.data() + at, shape_.experts,
              ~std::uint64_t{0} >> (block_tokens - valid), static_cast<std::uint32_t>(at)});
}

// Finds the best experts of each token in a tile of logits, which become exponentials.
void ExpertChoiceRouter::choose_best(float* tile, float* sum, std::size_t at) {
  const TileKernels& kernels = shape_.kernels;
  const int top_k = shape_.config.top_k;
  const ChoiceOutput best{best_.data() + at, best_probability_.data() + at, stride_};
  alignas(64) float maximum[tile_tokens];
  kernels.largest(tile, 0, shape_.experts, top_k, best);
  std::memcpy(maximum, best.probability, sizeof maximum);
  kernels.exps(tile, shape_.experts, maximum, scratch_.data(), sum);
  kernels.probabilities(maximum, sum, top_k, best);
}

void ExpertChoiceRouter::take(const GroupLogits& logits, const Domain& domain) {
  const std::size_t slots = domain.taken();
  slot_bits_ = static_cast<unsigned>(std::bit_width(slots));
  const auto experts = static_cast<std::uint64_t>(shape_.experts);
  if (experts << slot_bits_ > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(
        fmt::format("{} experts that take {} tokens each are too many: route fewer tokens at "
                    "a time",
                    experts, slots));
  }
  takers_.assign(stride_, 0);
  rows_ = taken_.size() / stride_;
  most_takers_ = 0;
  for (std::size_t expert = 0; expert < static_cast<std::size_t>(shape_.experts); ++expert) {
    count_rows(logits, domain, expert, slots);
    keep(expert, slots);
  }
}

// Counts a token's takers and keeps who they are.
void ExpertChoiceRouter::keep(std::size_t expert, std::size_t slots) {
  if (rows_ == most_takers_) taken_.resize(++rows_ * stride_);
  const std::uint32_t* token_of = lists_.tokens(expert);
  const float* g = lists_.values(expert);
  std::uint16_t* takers = takers_.data();
  std::uint64_t* taken = taken_.data();
  const std::size_t stride = stride_;
  const std::uint64_t first = std::uint64_t{expert} << slot_bits_;
  std::uint32_t most = 0;
#pragma GCC unroll 4
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const std::size_t token = token_of[slot];
    const std::uint32_t row = takers[token];
    const std::uint64_t bits = std::bit_cast<std::uint32_t>(g[slot]);
    taken[row * stride + token] = bits << 32 | (first + slot);
    takers[token] = static_cast<std::uint16_t>(row + 1);
    most = std::max(most, row + 1);
  }
  most_takers_ = std::max(most_takers_, std::size_t{most});
}

void ExpertChoiceRouter::count_rows(const GroupLogits& logits, const Domain& domain,
                                    std::size_t expert, std::size_t slots) {
  const auto experts = static_cast<std::size_t>(shape_.experts);
  std::size_t end = 0;
  const std::uint32_t* first = lists_.tokens(expert);
  const std::uint32_t* all = first + slots;
  for (int rank = domain.first; rank < domain.last; ++rank) {
    end += static_cast<std::size_t>(logits.tokens(rank));
    const std::uint32_t* last = std::lower_bound(first, all, end);
    outcome_.kept_rows[static_cast<std::size_t>(rank) * experts + expert] =
        static_cast<std::int32_t>(last - first);
    first = last;
  }
}

// The losses and, with keep_routes, the routes. Weights: raw: g, as in the paper. kept: divided by
// the mass of the experts that took the token; before-drop: divided by the mass of its k best
// experts.
void ExpertChoiceRouter::settle(const Domain& domain) {
  const std::size_t size = most_takers_ * group_stride_;
  SortedTakers routes;
  if (shape_.keep_routes) {
    grow(expert_, size);
    grow(probability_, size);
    grow(slot_, size);
    grow(weight_, size);
    const std::size_t at = group_tokens_;
    routes = {expert_.data() + at, probability_.data() + at,
              slot_.data() + at,   weight_.data() + at,
              group_stride_,       static_cast<int>(most_takers_)};
    sorted_.push_back({group_tokens_, domain.tokens, most_takers_});
  }
  grow(scratch_of_takers_, 2 * most_takers_ * tile_tokens);
  LossSums sums;
  sums.tokens = static_cast<std::int64_t>(domain.tokens);
  sums.primary_routes = sums.tokens * shape_.config.top_k;
  sums.slots = domain.slots * shape_.experts;
  sums.primary_kept = shape_.kernels.settle_takers(
      {domain.tokens, takers_.data(), taken_.data(), slot_bits_, shape_.config.top_k, best_.data(),
       best_probability_.data(), stride_},
      shape_.config.weights, scratch_of_takers_.data(), routes, sums.totals);
  const auto taken = static_cast<std::int64_t>(domain.taken());
  sums.others = taken * shape_.experts - sums.primary_kept;
  outcome_.sums += sums;
}

void ExpertChoiceRouter::count_demand(const Domain& domain) {
  std::int64_t* demand = outcome_.demand.data();
  const std::size_t tokens = domain.tokens;
  for (std::size_t choice = 0; choice < static_cast<std::size_t>(shape_.config.top_k); ++choice) {
    const std::uint16_t* best = best_.data() + choice * stride_;
#pragma GCC unroll 4
    for (std::size_t token = 0; token < tokens; ++token) ++demand[best[token]];
  }
}

// Swaps the routes with those of an earlier call, whose memory is used again.
void ExpertChoiceRouter::collect(RoutedGroup& group) {
  std::size_t most = 1;
  for (const Sorted& part : sorted_) most = std::max(most, part.choices);
  const std::size_t size = most * group_stride_;
  expert_.resize(size);
  probability_.resize(size);
  slot_.resize(size);
  weight_.resize(size);
  for (const Sorted& part : sorted_) {
    for (std::size_t choice = part.choices; choice < most; ++choice) {
      const auto at = static_cast<std::ptrdiff_t>(choice * group_stride_ + part.first);
      std::fill_n(expert_.begin() + at, part.tokens, no_expert);
      std::fill_n(probability_.begin() + at, part.tokens, 0.0F);
      std::fill_n(slot_.begin() + at, part.tokens, slot_failed);
      std::fill_n(weight_.begin() + at, part.tokens, 0.0F);
    }
  }
  group.top_k = group.choices = static_cast<int>(most);
  group.capacity = capacity_;
  group.stride = group_stride_;
  group.expert.swap(expert_);
  group.probability.swap(probability_);
  group.slot.swap(slot_);
  group.weight.swap(weight_);
}

void read(const RouterReading& in, RouterConfig& config) {
  in.expect(0, 0, "expert-choice");
  config.top_k = in.k_beside();
  config.weights = Weights::raw;
}

std::string name(const RouterConfig& /*config*/) { return "expert-choice"; }

std::unique_ptr<KindRouter> make(const KindShape& shape) {
  return std::make_unique<ExpertChoiceRouter>(shape);
}

constexpr double key_bytes = 12;  // an fp32 key and its int64 index

// Each expert's C best of S tokens: scores transposed, selected, sorted. No library is known to
// fuse more of it than the softmax.
GateWorkList price(const RouterConfig& config, const GateShape& shape) {
  GateWorkList list;
  if (shape.fused) {
    add_bf16_product(shape, list);
    add_gate_kernels(shape, shape.backward ? 2 : 1, list);
  } else {
    add_gate_product(shape, list);
    add_gate_kernels(shape, gate_kernels, list);
  }
  if (shape.backward) return list;
  const double cells = static_cast<double>(shape.tokens) * static_cast<double>(shape.experts);
  const double chosen =
      static_cast<double>(config.capacity(shape.tokens, shape.experts)) * shape.experts;
  list.push_back({.label = "column transpose", .bytes = 2 * fp32_bytes * cells});
  list.push_back({.label = "column select", .bytes = fp32_bytes * cells, .count = radix_passes});
  list.push_back({.label = "column sort",
                  .bytes = 2 * key_bytes * std::min(chosen, cells),
                  .count = radix_passes});
  return list;
}

}  // namespace

constinit const RouterDescriptor expert_choice_router{
    .head = "expert-choice",
    .form = "expert-choice",
    .help = "each expert takes its C best tokens",
    .one_mask = true,
    .blocks = ExchangeBlocks::full,
    .no_counts = "which tokens an expert takes depends on all tokens of a GPU",
    .read = read,
    .name = name,
    .make = make,
    .price = price,
    .assumed = "column top-k by radix passes"};

}  // namespace moesim::routing
