// expert-choice: each expert takes its C best tokens by g (Zhou et al. 2022).
#include <algorithm>
#include <cstdint>
#include <numeric>
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
  struct Taken {
    std::uint32_t token = 0;  // of the group
    std::uint16_t expert = 0;
    std::int32_t slot = 0;
    float probability = 0;
  };

  void route_domain(const GroupLogits& logits, const Domain& domain);
  void read(const GroupLogits& logits, const Domain& domain);
  void take(const GroupLogits& logits, const Domain& domain);
  void count_rows(const GroupLogits& logits, const Domain& domain, std::size_t expert);
  void add_losses(const Domain& domain);
  void sort_by_token(std::size_t tokens);
  float weight_of(const Taken& one, float sum, float best_mass) const;

  KindShape shape_;
  TileChooser tile_;
  // For one domain: [expert, token], and [choice, token] of the token's best experts.
  std::vector<float> probability_;
  std::vector<std::uint8_t> taken_;
  std::vector<std::uint16_t> best_;
  std::vector<float> best_probability_;
  std::size_t stride_ = 0;
  std::vector<std::uint32_t> places_;  // the tokens that an expert takes
  std::vector<float> mass_;            // [token]: mass of the experts that took it
  std::vector<std::int32_t> takers_;   // [token]: number of these experts
  // For the group, with keep_routes.
  std::vector<Taken> routes_, sorted_;
  std::vector<std::size_t> begin_;  // [token + 1], in sorted_
  std::vector<float> best_mass_;
  std::vector<std::int64_t> capacity_;  // [rank]
  std::size_t group_tokens_ = 0;
};

void ExpertChoiceRouter::decide(const GroupLogits& logits, const RouterContext& /*context*/) {
  outcome_ = empty_outcome(shape_);
  routes_.clear();
  best_mass_.clear();
  capacity_.clear();
  group_tokens_ = 0;
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
  probability_.resize(experts * stride_);
  best_.resize(top_k * stride_);
  best_probability_.resize(top_k * stride_);
  std::size_t begin = 0;
  for (int rank = domain.first; rank < domain.last; ++rank) {
    for (std::int64_t token = 0; token < logits.tokens(rank); token += tile_tokens) {
      const std::size_t at = begin + static_cast<std::size_t>(token);
      logits.fill_tile(rank, token, tile_.tile());
      tile_.find_best(shape_.config.top_k,
                      {best_.data() + at, best_probability_.data() + at, stride_});
      tile_.to_probabilities();
      for (std::size_t expert = 0; expert < experts; ++expert) {
        std::copy_n(tile_.tile() + expert * tile_tokens, tile_tokens,
                    probability_.data() + expert * stride_ + at);
      }
    }
    begin += static_cast<std::size_t>(logits.tokens(rank));
  }
  for (std::size_t expert = 0; expert < experts; ++expert) {  // the format of largest_places
    std::fill_n(probability_.data() + expert * stride_ + domain.tokens, tile_tokens, 0.0F);
  }
}

void ExpertChoiceRouter::take(const GroupLogits& logits, const Domain& domain) {
  const auto experts = static_cast<std::size_t>(shape_.experts);
  places_.resize(std::min(static_cast<std::size_t>(domain.slots), domain.tokens));
  taken_.assign(experts * stride_, 0);
  mass_.assign(domain.tokens, 0.0F);
  takers_.assign(domain.tokens, 0);
  for (std::size_t expert = 0; expert < experts; ++expert) {
    const float* g = probability_.data() + expert * stride_;
    std::uint8_t* taken = taken_.data() + expert * stride_;
    shape_.kernels.largest_places(g, domain.tokens, places_.size(), places_.data());
    for (const std::uint32_t token : places_) {
      taken[token] = 1;
      mass_[token] += g[token];
      ++takers_[token];
    }
    count_rows(logits, domain, expert);
    if (!shape_.keep_routes) continue;
    std::int32_t slot = 0;
    for (const std::uint32_t token : places_) {
      routes_.push_back({static_cast<std::uint32_t>(group_tokens_ + token),
                         static_cast<std::uint16_t>(expert), slot++, g[token]});
    }
  }
}

void ExpertChoiceRouter::count_rows(const GroupLogits& logits, const Domain& domain,
                                    std::size_t expert) {
  const auto experts = static_cast<std::size_t>(shape_.experts);
  std::size_t end = 0;
  auto first = places_.begin();
  for (int rank = domain.first; rank < domain.last; ++rank) {
    end += static_cast<std::size_t>(logits.tokens(rank));
    const auto last = std::lower_bound(first, places_.end(), end);
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
  for (std::size_t token = 0; token < domain.tokens; ++token) {
    const float processed = mass_[token];
    float whole = 0;
    float lost = 0;
    std::size_t kept = 0;
    for (std::size_t choice = 0; choice < top_k; ++choice) {
      const std::size_t expert = best_[choice * stride_ + token];
      const float g = best_probability_[choice * stride_ + token];
      const bool there = taken_[expert * stride_ + token] != 0;
      whole += g;
      lost += there ? 0.0F : g;
      kept += there ? 1 : 0;
      ++outcome_.demand[expert];
    }
    all_taken += takers_[token];
    sums.primary_kept += static_cast<std::int64_t>(kept);
    sums.totals.top_mass += whole;
    sums.totals.lost_mass += lost;
    sums.totals.partial += kept < top_k ? 1 : 0;
    sums.totals.unrouted += takers_[token] == 0 ? 1 : 0;
    if (processed < whole) sums.totals.residual += 1.0 - static_cast<double>(processed) / whole;
    if (shape_.keep_routes) best_mass_.push_back(whole);
  }
  sums.others = all_taken - sums.primary_kept;
  outcome_.sums += sums;
}

// raw: g, as in the paper. kept: divided by the mass of the experts that took the token;
// before-drop: divided by the mass of its k best experts.
float ExpertChoiceRouter::weight_of(const Taken& one, float sum, float best_mass) const {
  if (shape_.config.weights == Weights::raw) return one.probability;
  const float whole = shape_.config.weights == Weights::kept ? sum : best_mass;
  return whole > 0 ? one.probability / whole : 0.0F;
}

// Writes sorted_: a token's best expert first, ties: the lower expert. Experts are inserted in
// ascending order, so an insertion that stops at an equal value keeps this order.
void ExpertChoiceRouter::sort_by_token(std::size_t tokens) {
  begin_.assign(tokens + 1, 0);
  for (const Taken& one : routes_) ++begin_[one.token + 1];
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  sorted_.resize(routes_.size());
  std::vector<std::size_t> end(begin_.begin(), begin_.end() - 1);
  for (const Taken& one : routes_) {
    std::size_t at = end[one.token]++;
    for (; at > begin_[one.token] && sorted_[at - 1].probability < one.probability; --at) {
      sorted_[at] = sorted_[at - 1];
    }
    sorted_[at] = one;
  }
}

void ExpertChoiceRouter::collect(RoutedGroup& group) {
  sort_by_token(group.tokens);
  std::size_t most = 1;
  for (std::size_t token = 0; token < group.tokens; ++token) {
    most = std::max(most, begin_[token + 1] - begin_[token]);
  }
  group.top_k = group.choices = static_cast<int>(most);
  group.capacity = capacity_;
  clear_routes(group);
  for (std::size_t token = 0; token < group.tokens; ++token) {
    float sum = 0;
    for (std::size_t at = begin_[token]; at < begin_[token + 1]; ++at) {
      sum += sorted_[at].probability;
    }
    std::size_t to = token;
    for (std::size_t at = begin_[token]; at < begin_[token + 1]; ++at, to += group.stride) {
      const Taken& one = sorted_[at];
      group.expert[to] = one.expert;
      group.probability[to] = one.probability;
      group.slot[to] = one.slot;
      group.weight[to] = weight_of(one, sum, best_mass_[token]);
    }
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
