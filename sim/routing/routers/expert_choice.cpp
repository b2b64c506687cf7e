// expert-choice: each expert takes its C best tokens by g (Zhou et al. 2022).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

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
  void choose_best(float* sum, std::size_t at);
  void take(const GroupLogits& logits, const Domain& domain);
  void count_rows(const GroupLogits& logits, const Domain& domain, std::size_t expert,
                  std::size_t slots);
  void add_row();
  void keep(std::size_t expert, std::size_t slots);
  template <std::size_t choices>
  void add_masses(const Domain& domain, LossSums& sums);
  void add_losses(const Domain& domain);
  void sort(const Domain& domain);

  KindShape shape_;
  TileRows tile_, scratch_;
  // For one domain: [choice, token] of the token's best experts.
  std::vector<std::uint16_t> best_;
  std::vector<float> best_probability_;
  std::size_t stride_ = 0;
  ColumnLists lists_;
  std::vector<float> mass_;           // [token]: mass of the experts that took it
  std::vector<float> best_mass_;      // [token]: of its best experts
  std::vector<std::int32_t> takers_;  // [token]: number of experts that took it
  // With keep_routes: [taker, token] in the order of experts.
  std::size_t rows_ = 0;         // there is room for as many takers
  std::size_t most_takers_ = 0;  // of any token
  std::vector<std::uint16_t> taker_;
  std::vector<float> taker_probability_;
  std::vector<std::int32_t> taker_slot_;
  std::vector<float> sort_scratch_;
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

void ExpertChoiceRouter::route_domain(const GroupLogits& logits, const Domain& domain) {
  lists_.start(domain.tokens, domain.taken());
  read(logits, domain);
  if (!lists_.settle()) {
    read(logits, domain);
    lists_.settle();
  }
  take(logits, domain);
  best_mass_.resize(stride_);
  add_losses(domain);
  if (shape_.keep_routes) sort(domain);
  group_tokens_ += domain.tokens;
}

template <typename Value>
void grow(std::vector<Value>& values, std::size_t size) {
  if (values.size() < size) values.resize(size);
}

void ExpertChoiceRouter::read(const GroupLogits& logits, const Domain& domain) {
  const auto experts = static_cast<std::size_t>(shape_.experts);
  const auto top_k = static_cast<std::size_t>(shape_.config.top_k);
  stride_ = domain.tokens + tile_tokens;
  grow(best_, top_k * stride_);
  grow(best_probability_, top_k * stride_);
  tile_.grow(experts);
  scratch_.grow(experts);
  std::size_t begin = 0;
  for (int rank = domain.first; rank < domain.last; ++rank) {
    const std::int64_t count = logits.tokens(rank);
    for (std::int64_t token = 0; token < count; token += tile_tokens) {
      const std::size_t at = begin + static_cast<std::size_t>(token);
      const auto valid = static_cast<int>(std::min<std::int64_t>(tile_tokens, count - token));
      alignas(64) float sum[tile_tokens];
      logits.fill_unchecked(rank, token, tile_.data());
      choose_best(sum, at);
      if (std::any_of(sum, sum + valid, [](float value) { return std::isnan(value); })) {
        logits.fill_tile(rank, token, tile_.data());
        choose_best(sum, at);
      }
      lists_.add(
          {tile_.data(), sum, shape_.experts, (1U << valid) - 1, static_cast<std::uint32_t>(at)});
    }
    begin += static_cast<std::size_t>(count);
  }
}

// Of a tile of logits, which become exponentials.
void ExpertChoiceRouter::choose_best(float* sum, std::size_t at) {
  const TileKernels& kernels = shape_.kernels;
  const int top_k = shape_.config.top_k;
  const ChoiceOutput best{best_.data() + at, best_probability_.data() + at, stride_};
  alignas(64) float maximum[tile_tokens];
  kernels.largest(tile_.data(), 0, shape_.experts, top_k, best);
  std::memcpy(maximum, best.probability, sizeof maximum);
  kernels.exps(tile_.data(), shape_.experts, maximum, scratch_.data(), sum);
  kernels.probabilities(maximum, sum, top_k, best);
}

void ExpertChoiceRouter::take(const GroupLogits& logits, const Domain& domain) {
  const std::size_t slots = domain.taken();
  mass_.assign(stride_, 0.0F);
  takers_.assign(stride_, 0);
  rows_ = taker_.size() / stride_;
  most_takers_ = 0;
  for (std::size_t expert = 0; expert < static_cast<std::size_t>(shape_.experts); ++expert) {
    count_rows(logits, domain, expert, slots);
    keep(expert, slots);
  }
}

void ExpertChoiceRouter::add_row() {
  ++rows_;
  taker_.resize(rows_ * stride_);
  taker_probability_.resize(rows_ * stride_);
  taker_slot_.resize(rows_ * stride_);
}

// Adds up what a token's takers are worth, counts them, and with keep_routes keeps who they are.
void ExpertChoiceRouter::keep(std::size_t expert, std::size_t slots) {
  if (shape_.keep_routes && rows_ == most_takers_) add_row();
  const std::uint32_t* token_of = lists_.tokens(expert);
  const float* g = lists_.values(expert);
  std::int32_t* takers = takers_.data();
  float* mass = mass_.data();
  const std::size_t stride = stride_;
  std::uint16_t* taker = taker_.data();
  float* probability = taker_probability_.data();
  std::int32_t* taker_slot = taker_slot_.data();
  std::int32_t most = 0;
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const std::size_t token = token_of[slot];
    const std::int32_t row = takers[token]++;
    most = std::max(most, row + 1);
    mass[token] += g[slot];
    if (!shape_.keep_routes) continue;
    const std::size_t at = static_cast<std::size_t>(row) * stride + token;
    taker[at] = static_cast<std::uint16_t>(expert);
    probability[at] = g[slot];
    taker_slot[at] = static_cast<std::int32_t>(slot);
  }
  most_takers_ = std::max(most_takers_, static_cast<std::size_t>(most));
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

// `choices` is top_k, or 0: known only at run time.
template <std::size_t choices>
void ExpertChoiceRouter::add_masses(const Domain& domain, LossSums& sums) {
  const auto top_k = choices > 0 ? choices : static_cast<std::size_t>(shape_.config.top_k);
  const std::int32_t* takers = takers_.data();
  float* best_mass = best_mass_.data();
  const std::uint16_t* best = best_.data();
  const float* probability = best_probability_.data();
  const float* mass = mass_.data();
  const Cut* cut = lists_.cuts();
  std::int64_t* demand = outcome_.demand.data();
  const std::size_t stride = stride_;
  LossTotals totals;
  std::int64_t all_taken = 0;
  std::int64_t all_kept = 0;
  constexpr std::size_t block = 64;
  float lost[block];
  double missing[block];
  for (std::size_t first = 0; first < domain.tokens; first += block) {
    const std::size_t end = std::min(first + block, domain.tokens);
    for (std::size_t token = first; token < end; ++token) {
      float whole = 0;
      float lost_mass = 0;
      std::size_t kept = 0;
      for (std::size_t choice = 0; choice < top_k; ++choice) {
        const std::size_t expert = best[choice * stride + token];
        const float g = probability[choice * stride + token];
        const bool there = cut[expert].takes(g, token);
        whole += g;
        const std::uint32_t mask = there ? 0U : ~0U;  // unpredictable: no branch
        lost_mass += std::bit_cast<float>(std::bit_cast<std::uint32_t>(g) & mask);
        kept += there ? 1 : 0;
        ++demand[expert];
      }
      best_mass[token] = whole;
      lost[token - first] = lost_mass;
      all_kept += static_cast<std::int64_t>(kept);
      totals.partial += kept < top_k ? 1 : 0;
    }
    for (std::size_t token = first; token < end; ++token) {
      const double lack = 1.0 - static_cast<double>(mass[token]) / best_mass[token];
      missing[token - first] = lack > 0.0 ? lack : 0.0;
      all_taken += takers[token];
      totals.unrouted += takers[token] == 0 ? 1 : 0;
    }
    for (std::size_t token = first; token < end; ++token) {  // always in this order
      totals.top_mass += best_mass[token];
      totals.lost_mass += lost[token - first];
      totals.residual += missing[token - first];
    }
  }
  sums.primary_kept = all_kept;
  sums.others = all_taken - all_kept;
  sums.totals = totals;
}

void ExpertChoiceRouter::add_losses(const Domain& domain) {
  LossSums sums;
  sums.tokens = static_cast<std::int64_t>(domain.tokens);
  sums.primary_routes = sums.tokens * shape_.config.top_k;
  sums.slots = domain.slots * shape_.experts;
  if (shape_.config.top_k == 2) {
    add_masses<2>(domain, sums);
  } else {
    add_masses<0>(domain, sums);
  }
  outcome_.sums += sums;
}

// Weights: raw: g, as in the paper. kept: divided by the mass of the experts that took the token;
// before-drop: divided by the mass of its k best experts.
void ExpertChoiceRouter::sort(const Domain& domain) {
  const std::size_t size = most_takers_ * group_stride_;
  grow(expert_, size);
  grow(probability_, size);
  grow(slot_, size);
  grow(weight_, size);
  grow(sort_scratch_, 3 * most_takers_ * tile_tokens);
  for (std::size_t token = 0; token < domain.tokens; token += tile_tokens) {
    const std::size_t at = group_tokens_ + token;
    shape_.kernels.sort_takers(
        {takers_.data() + token, taker_.data() + token, taker_probability_.data() + token,
         taker_slot_.data() + token, stride_, best_mass_.data() + token},
        shape_.config.weights, sort_scratch_.data(),
        {expert_.data() + at, probability_.data() + at, slot_.data() + at, weight_.data() + at,
         group_stride_, static_cast<int>(most_takers_)});
  }
  sorted_.push_back({group_tokens_, domain.tokens, most_takers_});
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

// Each expert's C best of S tokens: scores transposed, selected, sorted.
GateWorkList price(const RouterConfig& config, const GateShape& shape) {
  if (shape.fused) return fused_gate(shape);
  GateWorkList list;
  add_gate_product(shape, list);
  add_gate_kernels(shape, gate_kernels, list);
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
