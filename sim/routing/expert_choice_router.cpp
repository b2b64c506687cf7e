#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <vector>

#include "sim/routing/chooser.hpp"

namespace moesim::routing {

namespace {

// Each expert takes its C best tokens by g (Zhou et al. 2022), lower tokens first among equals; C
// is of the tokens of one GPU, under `group` scope of all of them together. The token's "routes"
// are those to its k best experts.
class ExpertChoiceRouter final : public KindRouter {
 public:
  explicit ExpertChoiceRouter(const KindShape& shape)
      : shape_(shape), tile_(shape.experts, shape.kernels) {}

  void decide(const GroupLogits& logits, const RouterContext& context) override;
  void collect(RoutedGroup& group) override;

 private:
  // The tokens that share an expert's slots: of ranks [first, last).
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
  void take(const Domain& domain);
  void add_losses(const Domain& domain);
  void count_rows(const GroupLogits& logits, const Domain& domain);
  float weight_of(const Taken& one, float sum, float best_mass) const;

  KindShape shape_;
  TileChooser tile_;
  // Of one domain: [expert, token], and [choice, token] of the token's best.
  std::vector<float> probability_;
  std::vector<std::uint8_t> taken_;
  std::vector<std::uint16_t> best_;
  std::vector<float> best_probability_;
  std::size_t stride_ = 0;
  std::vector<std::uint64_t> keys_;
  // Of the group, with keep_routes.
  std::vector<Taken> routes_;
  std::vector<float> best_mass_;
  std::vector<std::int64_t> capacity_;  // [rank]
  std::size_t group_tokens_ = 0;
};

void ExpertChoiceRouter::decide(const GroupLogits& logits, const RouterContext& /*context*/) {
  const auto experts = static_cast<std::size_t>(shape_.experts);
  outcome_ = GroupOutcome{};
  outcome_.kept_rows.assign(static_cast<std::size_t>(shape_.ranks) * experts, 0);
  outcome_.ir_rows.assign(static_cast<std::size_t>(shape_.ranks), 0);
  outcome_.demand.assign(experts, 0);
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
  take(domain);
  add_losses(domain);
  count_rows(logits, domain);
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
      tile_.find_softmax();
      tile_.best(0, shape_.experts, shape_.config.top_k,
                 {best_.data() + at, best_probability_.data() + at, stride_});
      tile_.to_probabilities();
      for (std::size_t expert = 0; expert < experts; ++expert) {
        std::copy_n(tile_.tile() + expert * tile_tokens, tile_tokens,
                    probability_.data() + expert * stride_ + at);
      }
    }
    begin += static_cast<std::size_t>(logits.tokens(rank));
  }
}

void ExpertChoiceRouter::take(const Domain& domain) {
  const auto experts = static_cast<std::size_t>(shape_.experts);
  const std::size_t slots = std::min(static_cast<std::size_t>(domain.slots), domain.tokens);
  taken_.assign(experts * stride_, 0);
  keys_.resize(domain.tokens);
  for (std::size_t expert = 0; expert < experts; ++expert) {
    const float* g = probability_.data() + expert * stride_;
    std::uint8_t* taken = taken_.data() + expert * stride_;
    for (std::size_t token = 0; token < domain.tokens; ++token) {
      // Bits of floats that are not negative are in the order of the floats.
      keys_[token] = std::uint64_t{std::bit_cast<std::uint32_t>(g[token])} << 32 |
                     (0xffffffffU - static_cast<std::uint32_t>(token));
    }
    if (slots < domain.tokens) {
      std::nth_element(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(slots),
                       keys_.end(), std::greater<>());
    }
    for (std::size_t at = 0; at < slots; ++at) {
      taken[0xffffffffU - static_cast<std::uint32_t>(keys_[at])] = 1;
    }
    if (!shape_.keep_routes) continue;
    std::int32_t slot = 0;
    for (std::size_t token = 0; token < domain.tokens; ++token) {
      if (taken[token] == 0) continue;
      routes_.push_back({static_cast<std::uint32_t>(group_tokens_ + token),
                         static_cast<std::uint16_t>(expert), slot++, g[token]});
    }
  }
}

void ExpertChoiceRouter::add_losses(const Domain& domain) {
  const auto experts = static_cast<std::size_t>(shape_.experts);
  const auto top_k = static_cast<std::size_t>(shape_.config.top_k);
  LossSums sums;
  sums.tokens = static_cast<std::int64_t>(domain.tokens);
  sums.primary_routes = sums.tokens * shape_.config.top_k;
  sums.slots = domain.slots * shape_.experts;
  std::int64_t all_taken = 0;
  for (std::size_t token = 0; token < domain.tokens; ++token) {
    float processed = 0;
    int experts_of_token = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      if (taken_[expert * stride_ + token] == 0) continue;
      processed += probability_[expert * stride_ + token];
      ++experts_of_token;
    }
    float whole = 0;
    float lost = 0;
    std::size_t kept = 0;
    for (std::size_t choice = 0; choice < top_k; ++choice) {
      const std::size_t expert = best_[choice * stride_ + token];
      const float g = best_probability_[choice * stride_ + token];
      const bool there = taken_[expert * stride_ + token] != 0;
      whole += g;
      if (!there) lost += g;
      kept += there ? 1 : 0;
      ++outcome_.demand[expert];
    }
    all_taken += experts_of_token;
    sums.primary_kept += static_cast<std::int64_t>(kept);
    sums.totals.top_mass += whole;
    sums.totals.lost_mass += lost;
    sums.totals.partial += kept < top_k ? 1 : 0;
    sums.totals.unrouted += experts_of_token == 0 ? 1 : 0;
    if (processed < whole) sums.totals.residual += 1.0 - static_cast<double>(processed) / whole;
    if (shape_.keep_routes) best_mass_.push_back(whole);
  }
  sums.others = all_taken - sums.primary_kept;
  outcome_.sums += sums;
}

void ExpertChoiceRouter::count_rows(const GroupLogits& logits, const Domain& domain) {
  const auto experts = static_cast<std::size_t>(shape_.experts);
  std::size_t begin = 0;
  for (int rank = domain.first; rank < domain.last; ++rank) {
    const auto tokens = static_cast<std::size_t>(logits.tokens(rank));
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const auto first = taken_.begin() + static_cast<std::ptrdiff_t>(expert * stride_ + begin);
      outcome_.kept_rows[static_cast<std::size_t>(rank) * experts + expert] =
          static_cast<std::int32_t>(
              std::count(first, first + static_cast<std::ptrdiff_t>(tokens), std::uint8_t{1}));
    }
    begin += tokens;
  }
}

// raw: g, as in the paper. kept: over the sum of what took the token; before-drop: over the mass of
// its k best.
float ExpertChoiceRouter::weight_of(const Taken& one, float sum, float best_mass) const {
  if (shape_.config.weights == Weights::raw) return one.probability;
  const float whole = shape_.config.weights == Weights::kept ? sum : best_mass;
  return whole > 0 ? one.probability / whole : 0.0F;
}

void ExpertChoiceRouter::collect(RoutedGroup& group) {
  // Best expert of a token first, lower expert among equals.
  std::sort(routes_.begin(), routes_.end(), [](const Taken& one, const Taken& other) {
    if (one.token != other.token) return one.token < other.token;
    if (one.probability != other.probability) return one.probability > other.probability;
    return one.expert < other.expert;
  });
  std::vector<int> count(group.tokens, 0);
  std::vector<float> sum(group.tokens, 0.0F);
  for (const Taken& one : routes_) {
    ++count[one.token];
    sum[one.token] += one.probability;
  }
  group.top_k = group.choices =
      std::max(1, count.empty() ? 1 : *std::max_element(count.begin(), count.end()));
  group.stride = group.tokens;
  const std::size_t size = static_cast<std::size_t>(group.choices) * group.stride;
  group.expert.assign(size, no_expert);
  group.probability.assign(size, 0.0F);
  group.slot.assign(size, slot_failed);
  group.weight.assign(size, 0.0F);
  group.capacity = capacity_;
  std::fill(count.begin(), count.end(), 0);
  for (const Taken& one : routes_) {
    const std::size_t at = static_cast<std::size_t>(count[one.token]++) * group.stride + one.token;
    group.expert[at] = one.expert;
    group.probability[at] = one.probability;
    group.slot[at] = one.slot;
    group.weight[at] = weight_of(one, sum[one.token], best_mass_[one.token]);
  }
}

}  // namespace

std::unique_ptr<KindRouter> make_expert_choice_router(const KindShape& shape) {
  return std::make_unique<ExpertChoiceRouter>(shape);
}

}  // namespace moesim::routing
