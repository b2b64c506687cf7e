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
#include "sim/routing/tokens/tile_rows.hpp"

namespace moesim::routing {

namespace {

// Each expert takes its C best tokens by g (Zhou et al. 2022), ties: lower tokens first; among the
// tokens of one GPU, or with `group` scope among those of all GPUs together. The "routes" of a
// token are those to its k best experts.
//
// An expert takes few tokens. While a tile is at hand, only the cells that reach a bound of their
// expert are listed, and the best of these are selected exactly. The bound is guessed from the
// domain before: an expert whose guess was too high is listed once more, without.
class ExpertChoiceRouter final : public KindRouter {
 public:
  explicit ExpertChoiceRouter(const KindShape& shape) : shape_(shape) {}

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
  // The list of an expert.
  struct List {
    float guess = 0;  // of this domain: the bound at its start
    float bound = 0;
    bool is_cut = false;  // to as many as the expert takes, because it was too long
    bool is_settled = false;
  };
  void route_domain(const GroupLogits& logits, const Domain& domain);
  void start_lists(const Domain& domain);
  void read(const GroupLogits& logits, const Domain& domain);
  void choose_best(float* sum, std::size_t at);
  void list_tile(const ExpTile& tile, const Domain& domain);
  void settle_all(const GroupLogits& logits, const Domain& domain);
  void set_bound(std::size_t expert, float bound);
  Cut cut_list(std::size_t expert, std::size_t slots);
  bool settle(std::size_t expert, const Domain& domain);
  void guess(std::size_t expert, std::size_t listed, std::size_t slots, const Cut& cut);
  void take(const GroupLogits& logits, const Domain& domain);
  void count_rows(const GroupLogits& logits, const Domain& domain, std::size_t expert,
                  std::size_t slots);
  void add_row();
  void keep(std::size_t expert, std::size_t slots);
  template <std::size_t choices>
  void add_masses(const Domain& domain, LossSums& sums);
  void add_losses(const Domain& domain);

  float* values(std::size_t expert) { return value_.data() + start_[expert]; }
  std::uint32_t* tokens(std::size_t expert) { return token_.data() + start_[expert]; }
  std::size_t held(std::size_t expert) const { return next_[expert] - start_[expert]; }

  KindShape shape_;
  TileRows tile_, scratch_;
  // For one domain: [choice, token] of the token's best experts.
  std::vector<std::uint16_t> best_;
  std::vector<float> best_probability_;
  std::size_t stride_ = 0;
  std::vector<List> lists_;   // [expert]
  std::vector<float> reach_;  // [expert]: its bound, a little lower for rounding
  std::vector<std::uint32_t> start_, next_, last_;  // [expert]: of its list; last_: when to cut it
  std::vector<float> value_;  // [expert], the lists: g and token of listed cells
  std::vector<std::uint32_t> token_;
  std::vector<Cut> cut_;              // [expert]: which tokens it takes
  std::vector<float> mass_;           // [token]: mass of the experts that took it
  std::vector<std::int32_t> takers_;  // [token of the group]: number of these experts
  // For the group, with keep_routes: [taker, token] in the order of experts, and [token].
  std::size_t group_stride_ = 0;
  std::size_t rows_ = 0;         // there is room for as many takers
  std::size_t most_takers_ = 0;  // of any token so far
  std::vector<std::uint16_t> taker_;
  std::vector<float> taker_probability_;
  std::vector<std::int32_t> taker_slot_;
  std::vector<float> best_mass_;
  std::vector<std::int64_t> capacity_;  // [rank]
  std::size_t group_tokens_ = 0;
};

void ExpertChoiceRouter::decide(const GroupLogits& logits, const RouterContext& /*context*/) {
  outcome_ = empty_outcome(shape_);
  capacity_.clear();
  group_tokens_ = 0;
  group_stride_ = static_cast<std::size_t>(logits.all_tokens()) + tile_tokens;
  takers_.assign(group_stride_, 0);
  best_mass_.resize(group_stride_);
  rows_ = taker_.size() / group_stride_;
  most_takers_ = 0;
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
  start_lists(domain);
  read(logits, domain);
  take(logits, domain);
  add_losses(domain);
  group_tokens_ += domain.tokens;
}

template <typename Value>
void grow(std::vector<Value>& values, std::size_t size) {
  if (values.size() < size) values.resize(size);
}

// Lists have room for one tile more than they may hold, and for the format of keep_largest.
void ExpertChoiceRouter::start_lists(const Domain& domain) {
  constexpr std::size_t room = std::size_t{2} * tile_tokens;
  const auto experts = static_cast<std::size_t>(shape_.experts);
  const std::size_t longest = std::min(3 * domain.taken() + tile_tokens, domain.tokens);
  lists_.resize(experts);
  reach_.resize(experts);
  start_.resize(experts);
  next_.resize(experts);
  last_.resize(experts);
  cut_.assign(experts, Cut{});
  for (std::size_t expert = 0; expert < experts; ++expert) {
    start_[expert] = next_[expert] = static_cast<std::uint32_t>(expert * (longest + room));
    last_[expert] = start_[expert] + static_cast<std::uint32_t>(longest);
    lists_[expert].is_cut = false;
    set_bound(expert, lists_[expert].guess);
  }
  grow(value_, experts * (longest + room));
  grow(token_, experts * (longest + room));
}

// g = e / sum reaches the bound only if e reaches bound * sum less two roundings.
void ExpertChoiceRouter::set_bound(std::size_t expert, float bound) {
  constexpr float rounding = 1 - 1e-6F;
  constexpr float least = 1e-30F;  // below it products are not accurate
  lists_[expert].bound = bound;
  reach_[expert] = bound > least ? bound * rounding : 0.0F;
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
      list_tile(
          {tile_.data(), sum, shape_.experts, (1U << valid) - 1, static_cast<std::uint32_t>(at)},
          domain);
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

// If a list becomes too long, later tokens must beat the last of those that the expert would take.
void ExpertChoiceRouter::list_tile(const ExpTile& tile, const Domain& domain) {
  shape_.kernels.list_cells(tile, reach_.data(), {value_.data(), token_.data(), next_.data()});
  std::uint32_t too_long = 0;
  for (std::size_t expert = 0; expert < next_.size(); ++expert) {
    too_long |= next_[expert] > last_[expert] ? 1U : 0U;
  }
  if (too_long == 0) return;
  for (std::size_t expert = 0; expert < next_.size(); ++expert) {
    if (next_[expert] <= last_[expert]) continue;
    const Cut cut = cut_list(expert, domain.taken());
    lists_[expert].is_cut = true;
    set_bound(expert, std::max(lists_[expert].bound, std::bit_cast<float>(cut.least)));
  }
}

Cut ExpertChoiceRouter::cut_list(std::size_t expert, std::size_t slots) {
  const std::size_t listed = held(expert);
  next_[expert] = start_[expert] + static_cast<std::uint32_t>(slots);
  return shape_.kernels.keep_largest(values(expert), tokens(expert), listed, slots);
}

// The list becomes the tokens that the expert takes. False: the guess was too high.
bool ExpertChoiceRouter::settle(std::size_t expert, const Domain& domain) {
  const std::size_t slots = domain.taken();
  const std::size_t listed = held(expert);
  if (listed < slots) return false;
  cut_[expert] = cut_list(expert, slots);
  if (slots > 0 && std::bit_cast<float>(cut_[expert].least) < lists_[expert].guess) return false;
  guess(expert, listed, slots, cut_[expert]);
  return true;
}

// Experts whose guess was too high are listed once more, without one.
void ExpertChoiceRouter::settle_all(const GroupLogits& logits, const Domain& domain) {
  constexpr float never = 2;  // no g reaches it
  bool again = false;
  for (std::size_t expert = 0; expert < next_.size(); ++expert) {
    lists_[expert].is_settled = settle(expert, domain);
    again = again || !lists_[expert].is_settled;
  }
  if (!again) return;
  for (std::size_t expert = 0; expert < next_.size(); ++expert) {
    List& list = lists_[expert];
    set_bound(expert, list.is_settled ? never : 0);
    if (list.is_settled) continue;
    next_[expert] = start_[expert];
    list.guess = 0;
    list.is_cut = true;
  }
  read(logits, domain);
  for (std::size_t expert = 0; expert < next_.size(); ++expert) {
    if (!lists_[expert].is_settled) settle(expert, domain);
  }
}

// The next domain's bound should be reached by somewhat more tokens than the expert takes: the
// number that reaches a bound scatters as its root. The value of that rank follows from two others.
// Any guess gives the same routes.
void ExpertChoiceRouter::guess(std::size_t expert, std::size_t listed, std::size_t slots,
                               const Cut& cut) {
  constexpr float lower = 0.8F;
  List& list = lists_[expert];
  if (slots == 0) return;
  const auto least = std::bit_cast<float>(cut.least);
  if (list.is_cut) {
    list.guess = lower * least;
    return;
  }
  const float above = 4.5F * std::sqrt(static_cast<float>(slots));
  const auto listed_above = static_cast<float>(listed - slots + 1);
  const float wanted = least - (least - list.guess) * std::min(2.0F, above / listed_above);
  list.guess = std::max(0.0F, (std::min(wanted, least) + list.guess) / 2);
}

void ExpertChoiceRouter::take(const GroupLogits& logits, const Domain& domain) {
  const std::size_t slots = domain.taken();
  settle_all(logits, domain);
  mass_.assign(domain.tokens, 0.0F);
  for (std::size_t expert = 0; expert < cut_.size(); ++expert) {
    count_rows(logits, domain, expert, slots);
    keep(expert, slots);
  }
}

void ExpertChoiceRouter::add_row() {
  ++rows_;
  taker_.resize(rows_ * group_stride_);
  taker_probability_.resize(rows_ * group_stride_);
  taker_slot_.resize(rows_ * group_stride_);
}

// Adds up what a token's takers are worth, counts them, and with keep_routes keeps who they are.
void ExpertChoiceRouter::keep(std::size_t expert, std::size_t slots) {
  if (shape_.keep_routes && rows_ == most_takers_) add_row();
  const std::uint32_t* token_of = tokens(expert);
  const float* g = values(expert);
  std::int32_t* takers = takers_.data() + group_tokens_;
  float* mass = mass_.data();
  const std::size_t stride = group_stride_;
  std::uint16_t* taker = taker_.data() + group_tokens_;
  float* probability = taker_probability_.data() + group_tokens_;
  std::int32_t* taker_slot = taker_slot_.data() + group_tokens_;
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
  const std::uint32_t* first = tokens(expert);
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
  const std::int32_t* takers = takers_.data() + group_tokens_;
  float* best_mass = best_mass_.data() + group_tokens_;
  const std::uint16_t* best = best_.data();
  const float* probability = best_probability_.data();
  const float* mass = mass_.data();
  const Cut* cut = cut_.data();
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
        lost_mass += there ? 0.0F : g;
        kept += there ? 1 : 0;
        ++demand[expert];
      }
      best_mass[token] = whole;
      lost[token - first] = lost_mass;
      all_kept += static_cast<std::int64_t>(kept);
      totals.partial += kept < top_k ? 1 : 0;
    }
    for (std::size_t token = first; token < end; ++token) {
      const double share = static_cast<double>(mass[token]) / best_mass[token];
      missing[token - first] = mass[token] < best_mass[token] ? 1.0 - share : 0.0;
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
void ExpertChoiceRouter::collect(RoutedGroup& group) {
  const std::size_t most = std::max(std::size_t{1}, most_takers_);
  group.top_k = group.choices = static_cast<int>(most);
  group.capacity = capacity_;
  group.stride = group_stride_;
  group.expert.resize(most * group_stride_);
  group.probability.resize(most * group_stride_);
  group.slot.resize(most * group_stride_);
  group.weight.resize(most * group_stride_);
  std::vector<float> scratch(3 * most * tile_tokens);
  for (std::size_t token = 0; token < group.tokens; token += tile_tokens) {
    shape_.kernels.sort_takers(
        {takers_.data() + token, taker_.data() + token, taker_probability_.data() + token,
         taker_slot_.data() + token, group_stride_, best_mass_.data() + token},
        shape_.config.weights, scratch.data(),
        {group.expert.data() + token, group.probability.data() + token, group.slot.data() + token,
         group.weight.data() + token, group_stride_, group.choices});
  }
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
