// hash: one expert per token, a hash of its id; ids are Zipf-distributed (Roller et al. 2021).
// Parameter: the exponent of that distribution.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/base/random.hpp"
#include "sim/routing/groups/drawn_chooser.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"

namespace moesim::routing {

namespace {

const Decimal& exponent(const RouterConfig& config) { return config.parameters[0]; }

// The size of a usual vocabulary (LLaMA 2).
constexpr std::size_t vocabulary = 32000;

// The ids of tokens: id 0 is the most frequent.
class TokenIds {
 public:
  explicit TokenIds(const Decimal& exponent);

  // `draw` in (0, 1): the quantile of the token's id.
  std::uint16_t id(double draw) const;

 private:
  static constexpr std::size_t steps = 1 << 16;  // a power of two: step / steps is exact

  std::vector<double> cumulative_;    // [id], not normalised
  std::vector<std::uint16_t> first_;  // [step]: the first id that a draw in it may have
};

TokenIds::TokenIds(const Decimal& exponent) : cumulative_(vocabulary), first_(steps) {
  const double falling = -exponent.to_double();
  for (std::size_t id = 0; id < vocabulary; ++id) {
    cumulative_[id] = std::pow(static_cast<double>(id + 1), falling);
  }
  std::partial_sum(cumulative_.begin(), cumulative_.end(), cumulative_.begin());
  std::uint16_t id = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    const double at = static_cast<double>(step) / steps * cumulative_.back();
    while (cumulative_[id] <= at) ++id;
    first_[step] = id;
  }
}

std::uint16_t TokenIds::id(double draw) const {
  const double at = draw * cumulative_.back();
  std::uint16_t id = first_[static_cast<std::size_t>(draw * steps)];
  while (cumulative_[id] <= at && id + 1U < vocabulary) ++id;
  return id;
}

// The finaliser of SplitMix64 (Steele et al. 2014). The hash is static: it does not depend on seed
// or replica; it differs between layers, as in Roller et al. 2021.
std::uint16_t expert_of(std::uint64_t id, std::uint32_t layer, std::uint64_t experts) {
  std::uint64_t mixed = (id + (std::uint64_t{layer} << 32) + 1) * 0x9e3779b97f4a7c15U;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
  mixed ^= mixed >> 31;
  return static_cast<std::uint16_t>(mixed % experts);
}

// The expert of each id in one layer.
class HashedLayer {
 public:
  explicit HashedLayer(int experts) : experts_(static_cast<std::uint64_t>(experts)) {}

  // [id]
  const std::vector<std::uint16_t>& of(std::uint32_t layer) {
    if (!expert_.empty() && layer == layer_) return expert_;
    layer_ = layer;
    expert_.resize(vocabulary);
    for (std::size_t id = 0; id < vocabulary; ++id) expert_[id] = expert_of(id, layer, experts_);
    return expert_;
  }

 private:
  std::uint64_t experts_;
  std::uint32_t layer_ = 0;
  std::vector<std::uint16_t> expert_;
};

// A token keeps its id from layer to layer.
Stream id_stream(std::uint64_t seed, std::uint32_t replica, std::uint32_t gpu) {
  return Stream({seed, Purpose::token_id, replica, 0, gpu});
}

class HashChooser final : public DrawnChooser {
 public:
  explicit HashChooser(const KindShape& shape)
      : DrawnChooser(shape), ids_(exponent(shape.config)), hashed_(shape.experts) {}

 protected:
  void draw(std::int64_t tokens, std::uint32_t gpu, const RouterContext& context) override {
    const std::vector<std::uint16_t>& expert = hashed_.of(context.layer);
    Stream ids = id_stream(context.seed, context.replica, gpu);
    for (std::size_t token = 0; token < static_cast<std::size_t>(tokens); ++token) {
      experts_[token] = expert[ids_.id(ids.uniform())];
    }
  }

 private:
  TokenIds ids_;
  HashedLayer hashed_;
};

// Counts the tokens of a GPU by id once, and adds these up by expert in each layer.
class HashCounter final : public ExactCounter {
 public:
  HashCounter(const Decimal& exponent, int experts) : ids_(exponent), hashed_(experts) {}

  void count(const StreamKey& gpu, std::int64_t tokens, std::span<std::int32_t> counts) override {
    const std::vector<std::uint16_t>& expert = hashed_.of(gpu.layer);
    std::fill(counts.begin(), counts.end(), 0);
    for (const IdCount& each : counted(gpu, tokens)) counts[expert[each.id]] += each.tokens;
  }

 private:
  struct IdCount {
    std::uint16_t id;
    std::int32_t tokens;
  };
  // Of all GPUs together. More are counted again in every layer.
  static constexpr std::size_t most_kept = (std::size_t{256} << 20) / sizeof(IdCount);

  // The ids that a GPU's tokens have, until the next call.
  std::span<const IdCount> counted(const StreamKey& gpu, std::int64_t tokens) {
    const auto step = std::tuple(gpu.seed, gpu.replica, tokens);
    if (step != step_) {
      step_ = step;
      kept_.clear();
      places_.clear();
    }
    if (const auto place = places_.find(gpu.rank); place != places_.end()) {
      return std::span(kept_).subspan(place->second.first, place->second.second);
    }
    count_ids(gpu, tokens);
    if (kept_.size() + found_.size() <= most_kept) {
      places_[gpu.rank] = {kept_.size(), found_.size()};
      kept_.insert(kept_.end(), found_.begin(), found_.end());
    }
    return found_;
  }

  void count_ids(const StreamKey& gpu, std::int64_t tokens) {
    of_id_.assign(vocabulary, 0);
    Stream ids = id_stream(gpu.seed, gpu.replica, gpu.rank);
    for (std::int64_t token = 0; token < tokens; ++token) ++of_id_[ids_.id(ids.uniform())];
    found_.clear();
    for (std::size_t id = 0; id < vocabulary; ++id) {
      if (of_id_[id] > 0) found_.push_back({static_cast<std::uint16_t>(id), of_id_[id]});
    }
  }

  TokenIds ids_;
  HashedLayer hashed_;
  std::vector<std::int32_t> of_id_;
  std::vector<IdCount> found_;                                     // of one GPU
  std::tuple<std::uint64_t, std::uint32_t, std::int64_t> step_{};  // that is kept
  std::vector<IdCount> kept_;
  std::unordered_map<std::uint32_t, std::pair<std::size_t, std::size_t>> places_;  // by rank
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

std::unique_ptr<ExactCounter> make_counter(const RouterConfig& config, int experts) {
  return std::make_unique<HashCounter>(exponent(config), experts);
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
    .make_counter = make_counter,
    .price = scoreless_gate};

}  // namespace moesim::routing
