// expert-choice: each expert takes its C best tokens by g (Zhou et al. 2022).
#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/routing/groups/kind_router.hpp"
#include "sim/routing/groups/tile_chooser.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"

namespace moesim::routing {

namespace {

// Each expert takes its C best tokens by g (Zhou et al. 2022), ties: lower tokens first; among the
// tokens of one GPU, or with `group` scope among those of all GPUs together. The "routes" of a
// token are those to its k best experts.
class ExpertChoiceRouter final : public KindRouter {
 public:
  explicit ExpertChoiceRouter(const KindShape& shape)
      : shape_(shape), tile_(shape.experts, shape.kernels) {}

  void decide(const GroupLogits& logits, const RouterContext& context) override;
  void collect(RoutedGroup& group) override;

 private:
  // The tokens that share an expert's slots: those of ranks [first, last).
  struct Domain {
    int first = 0, last = 0;
    std::size_t tokens = 0;
    std::int64_t slots = 0;
  };
  void route_domain(const GroupLogits& logits, const Domain& domain);
  void read(const GroupLogits& logits, const Domain& domain);
  void take(const GroupLogits& logits, const Domain& domain);
  void count_rows(const GroupLogits& logits, const Domain& domain, std::size_t expert,
                  std::size_t slots);
  void add_row();
  void keep(std::size_t expert, std::size_t slots);
  void add_losses(const Domain& domain);

  KindShape shape_;
  TileChooser tile_;
  // For one domain: [expert, token], and [choice, token] of the token's best experts.
  std::vector<float> probability_;
  std::vector<std::uint16_t> best_;
  std::vector<float> best_probability_;
  std::size_t stride_ = 0;
  std::vector<Cut> cut_;               // [expert]: which tokens it takes
  std::vector<std::uint32_t> places_;  // the tokens that an expert takes, and their g
  std::vector<float> taken_;
  std::vector<float> mass_;           // [token]: mass of the experts that took it
  std::vector<std::int32_t> takers_;  // [token of the group]: number of these experts
  // For the group, with keep_routes: [taker, token] in the order of experts, and [token].
  std::size_t group_stride_ = 0;
  std::size_t rows_ = 0;  // there is room for as many takers
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
  if (shape_.keep_routes && rows_ == 0) add_row();
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
  read(logits, domain);
  take(logits, domain);
  add_losses(domain);
  group_tokens_ += domain.tokens;
}

void ExpertChoiceRouter::read(const GroupLogits& logits, const Domain& domain) {
  const auto experts = static_cast<std::size_t>(shape_.experts);
  const auto top_k = static_cast<std::size_t>(shape_.config.top_k);
  stride_ = domain.tokens + tile_tokens;
  const auto grow = [](auto& values, std::size_t size) {
    if (values.size() < size) values.resize(size);
  };
  grow(probability_, experts * stride_);
  grow(best_, top_k * stride_);
  grow(best_probability_, top_k * stride_);
  std::size_t begin = 0;
  for (int rank = domain.first; rank < domain.last; ++rank) {
    for (std::int64_t token = 0; token < logits.tokens(rank); token += tile_tokens) {
      const std::size_t at = begin + static_cast<std::size_t>(token);
      logits.fill_tile(rank, token, tile_.tile());
      tile_.find_all(shape_.config.top_k,
                     {best_.data() + at, best_probability_.data() + at, stride_},
                     probability_.data() + at, stride_);
    }
    begin += static_cast<std::size_t>(logits.tokens(rank));
  }
  for (std::size_t expert = 0; expert < experts; ++expert) {  // the format of largest_places
    std::fill_n(probability_.data() + expert * stride_ + domain.tokens, tile_tokens, 0.0F);
  }
}

void ExpertChoiceRouter::take(const GroupLogits& logits, const Domain& domain) {
  constexpr std::size_t behind = 64;  // the format of largest_places
  const auto experts = static_cast<std::size_t>(shape_.experts);
  const std::size_t slots = std::min(static_cast<std::size_t>(domain.slots), domain.tokens);
  places_.resize(domain.tokens + behind);
  taken_.resize(domain.tokens + behind);
  cut_.resize(experts);
  mass_.assign(domain.tokens, 0.0F);
  for (std::size_t expert = 0; expert < experts; ++expert) {
    const float* g = probability_.data() + expert * stride_;
    cut_[expert] =
        shape_.kernels.largest_places(g, domain.tokens, slots, places_.data(), taken_.data());
    for (std::size_t slot = 0; slot < slots; ++slot) mass_[places_[slot]] += taken_[slot];
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

// Counts the takers of each token, and with keep_routes keeps who they are.
void ExpertChoiceRouter::keep(std::size_t expert, std::size_t slots) {
  std::int32_t* takers = takers_.data() + group_tokens_;
  if (!shape_.keep_routes) {
    for (std::size_t slot = 0; slot < slots; ++slot) ++takers[places_[slot]];
    return;
  }
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const std::uint32_t token = places_[slot];
    const auto row = static_cast<std::size_t>(takers[token]++);
    if (row == rows_) add_row();
    const std::size_t at = row * group_stride_ + group_tokens_ + token;
    taker_[at] = static_cast<std::uint16_t>(expert);
    taker_probability_[at] = taken_[slot];
    taker_slot_[at] = static_cast<std::int32_t>(slot);
  }
}

void ExpertChoiceRouter::count_rows(const GroupLogits& logits, const Domain& domain,
                                    std::size_t expert, std::size_t slots) {
  const auto experts = static_cast<std::size_t>(shape_.experts);
  std::size_t end = 0;
  auto first = places_.begin();
  const auto all = first + static_cast<std::ptrdiff_t>(slots);
  for (int rank = domain.first; rank < domain.last; ++rank) {
    end += static_cast<std::size_t>(logits.tokens(rank));
    const auto last = std::lower_bound(first, all, end);
    outcome_.kept_rows[static_cast<std::size_t>(rank) * experts + expert] =
        static_cast<std::int32_t>(last - first);
    first = last;
  }
}

void ExpertChoiceRouter::add_losses(const Domain& domain) {
  const auto top_k = static_cast<std::size_t>(shape_.config.top_k);
  LossSums sums;
  sums.tokens = static_cast<std::int64_t>(domain.tokens);
  sums.primary_routes = sums.tokens * shape_.config.top_k;
  sums.slots = domain.slots * shape_.experts;
  std::int64_t all_taken = 0;
  const std::int32_t* takers = takers_.data() + group_tokens_;
  float* best_mass = best_mass_.data() + group_tokens_;
  for (std::size_t token = 0; token < domain.tokens; ++token) {
    const float processed = mass_[token];
    float whole = 0;
    float lost = 0;
    std::size_t kept = 0;
    for (std::size_t choice = 0; choice < top_k; ++choice) {
      const std::size_t expert = best_[choice * stride_ + token];
      const float g = best_probability_[choice * stride_ + token];
      const bool there = cut_[expert].takes(g, token);
      whole += g;
      lost += there ? 0.0F : g;
      kept += there ? 1 : 0;
      ++outcome_.demand[expert];
    }
    all_taken += takers[token];
    sums.primary_kept += static_cast<std::int64_t>(kept);
    sums.totals.top_mass += whole;
    sums.totals.lost_mass += lost;
    sums.totals.partial += kept < top_k ? 1 : 0;
    sums.totals.unrouted += takers[token] == 0 ? 1 : 0;
    const double share = static_cast<double>(processed) / whole;  // whole > 0
    sums.totals.residual += processed < whole ? 1.0 - share : 0.0;
    best_mass[token] = whole;
  }
  sums.others = all_taken - sums.primary_kept;
  outcome_.sums += sums;
}

// Weights: raw: g, as in the paper. kept: divided by the mass of the experts that took the token;
// before-drop: divided by the mass of its k best experts.
void ExpertChoiceRouter::collect(RoutedGroup& group) {
  const std::size_t most = std::max(
      std::size_t{1}, static_cast<std::size_t>(*std::max_element(takers_.begin(), takers_.end())));
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
