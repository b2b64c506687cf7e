// hash: one expert per token, a hash of its id; ids are Zipf-distributed (Roller et al. 2021).
// Parameter: the exponent of that distribution.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/random.hpp"
#include "sim/routing/groups/drawn_chooser.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"

namespace moesim::routing {

namespace {

const Decimal& exponent(const RouterConfig& config) { return config.parameters[0]; }

// The size of a usual vocabulary (LLaMA 2).
constexpr std::size_t vocabulary = 32000;

// The ids of tokens, with id 0 the most frequent, and the expert that each is hashed to. The hash
// is static: it does not depend on seed or replica; it differs between layers, as in Roller et al.
// 2021.
class HashedIds {
 public:
  HashedIds(const Decimal& exponent, int experts);

  // `draw` in (0, 1): the quantile of the token's id, the most frequent id first.
  std::uint16_t expert(double draw, std::uint32_t layer) const;
  // [expert]: P(a token has this expert); the sum is 1.
  std::vector<double> shares(std::uint32_t layer) const;

 private:
  std::uint16_t hashed(std::uint64_t id, std::uint32_t layer) const;

  std::uint64_t experts_;
  std::vector<double> cumulative_;  // [id], not normalised
};

HashedIds::HashedIds(const Decimal& exponent, int experts)
    : experts_(static_cast<std::uint64_t>(experts)), cumulative_(vocabulary) {
  const double falling = -exponent.to_double();
  for (std::size_t id = 0; id < vocabulary; ++id) {
    cumulative_[id] = std::pow(static_cast<double>(id + 1), falling);
  }
  std::partial_sum(cumulative_.begin(), cumulative_.end(), cumulative_.begin());
}

std::uint16_t HashedIds::expert(double draw, std::uint32_t layer) const {
  const double at = draw * cumulative_.back();
  const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end(), at);
  const auto id = static_cast<std::uint64_t>(found - cumulative_.begin());
  return hashed(std::min<std::uint64_t>(id, vocabulary - 1), layer);
}

std::vector<double> HashedIds::shares(std::uint32_t layer) const {
  std::vector<double> shares(experts_, 0.0);
  double before = 0;
  for (std::size_t id = 0; id < vocabulary; ++id) {
    shares[hashed(id, layer)] += (cumulative_[id] - before) / cumulative_.back();
    before = cumulative_[id];
  }
  return shares;
}

// The finaliser of SplitMix64 (Steele et al. 2014).
std::uint16_t HashedIds::hashed(std::uint64_t id, std::uint32_t layer) const {
  std::uint64_t mixed = (id + (std::uint64_t{layer} << 32) + 1) * 0x9e3779b97f4a7c15U;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
  mixed ^= mixed >> 31;
  return static_cast<std::uint16_t>(mixed % experts_);
}

class HashChooser final : public DrawnChooser {
 public:
  explicit HashChooser(const KindShape& shape)
      : DrawnChooser(shape), hashed_(exponent(shape.config), shape.experts) {}

 protected:
  void draw(std::int64_t tokens, std::uint32_t gpu, const RouterContext& context) override {
    // A token keeps its id from layer to layer.
    Stream ids({context.seed, Purpose::token_id, context.replica, 0, gpu});
    for (std::size_t token = 0; token < static_cast<std::size_t>(tokens); ++token) {
      experts_[token] = hashed_.expert(ids.uniform(), context.layer);
    }
  }

 private:
  HashedIds hashed_;
};

void read(const RouterReading& in, RouterConfig& config) {
  in.expect(0, 1, "hash:EXPONENT, such as hash:1");
  config.top_k = in.k_of_one();
  config.parameters[0] = in.parts.size() == 2 ? in.number(in.parts[1]) : Decimal(1);
  if (exponent(config) > Decimal(10)) in.refuse("an exponent above 10: give 0 to 10");
}

std::string name(const RouterConfig& config) { return "hash:" + exponent(config).text(); }

std::unique_ptr<KindRouter> make(const KindShape& shape) {
  return make_chosen_router(shape, std::make_unique<HashChooser>(shape));
}

std::vector<double> expert_shares(const RouterConfig& config, int experts, std::uint32_t layer) {
  return HashedIds(exponent(config), experts).shares(layer);
}

}  // namespace

constinit const RouterDescriptor hash_router{
    .head = "hash",
    .form = "hash[:EXPONENT]",
    .help = "by the token's id; ids are Zipf-distributed [1]",
    .gate = false,
    .keeps_ids = true,
    .read = read,
    .name = name,
    .make = make,
    .expert_shares = expert_shares,
    .price = scoreless_gate};

}  // namespace moesim::routing
