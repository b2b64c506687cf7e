// sinkhorn: the k best experts after exp(logits) is scaled so that tokens and experts have equal
// sums (Sinkhorn-Knopp; Megatron-Core's moe_router_load_balancing_type sinkhorn: S-BASE, Clark et
// al. 2022). In a forward pass alone the k best by logit. Weights are the softmax as it is, of k =
// 1 the sigmoid. Dropless unless a capacity factor is given.
#include <fmt/format.h>

#include <algorithm>

#include "sim/routing/groups/chooser.hpp"
#include "sim/routing/groups/tile_chooser.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"
#include "sim/routing/routers/sinkhorn_costs.hpp"
#include "sim/routing/tokens/softmax.hpp"

namespace moesim::routing {

namespace {

bool balances(const RouterConfig& config) { return config.parameters[0].is_zero(); }

class SinkhornChooser final : public Chooser {
 public:
  explicit SinkhornChooser(const KindShape& shape)
      : shape_(shape),
        tile_(shape.experts, shape.kernels),
        experts_(static_cast<std::size_t>(shape.experts)),
        costs_(shape.experts, shape.kernels) {}

  KeepingRules rules(const RouterContext& /*context*/) const override {
    return {shape_.config, shape_.experts};
  }

  // Each rank scales its own tokens.
  void choose(const GroupLogits& logits, const RouterContext& /*context*/, Choices& out) override {
    const int top_k = shape_.config.top_k;
    out.reference_mass.resize(static_cast<std::size_t>(logits.all_tokens()) + tile_tokens);
    float* mass = out.reference_mass.data();
    sigmoid_.clear();
    for (int rank = 0; rank < logits.ranks(); ++rank) {
      const std::int64_t tokens = logits.tokens(rank);
      if (balances(shape_.config)) find_scale(logits, rank);
      out.table.append_chosen(tokens, [&](std::int64_t token, const ChoiceOutput& to) {
        if (balances(shape_.config)) {
          std::copy_n(logits_of(token), experts_ * tile_tokens, tile_.tile());
        } else {
          logits.fill_tile(rank, token, tile_.tile());
        }
        tile_.find_softmax();
        tile_.best_mass(top_k, mass + token);
        score_.assign(tile_.tile(), tile_.tile() + experts_ * tile_tokens);
        if (balances(shape_.config)) {
          set_scaled(costs_.tile(token));
          shape_.kernels.largest(scaled_.data(), 0, shape_.experts, top_k, to);
        } else {
          shape_.kernels.largest(score_.data(), 0, shape_.experts, top_k, to);
        }
        if (top_k == 1) keep_sigmoids(to.expert);
        tile_.to_probabilities(shape_.experts, {nullptr, score_.data(), tile_tokens});
        if (shape_.config.has_capacity()) keep_best(out.table.best_output(token));
        for (std::size_t choice = 0; choice < static_cast<std::size_t>(top_k); ++choice) {
          for (std::size_t place = 0; place < tile_tokens; ++place) {
            const std::size_t at = choice * to.stride + place;
            to.probability[at] = score_[std::size_t{to.expert[at]} * tile_tokens + place];
          }
        }
      });
      if (top_k == 1)
        sigmoid_.resize(sigmoid_.size() - static_cast<std::size_t>(-tokens & (tile_tokens - 1)));
      mass += tokens;
    }
  }

  void reweigh(RoutedGroup& group) const override {
    if (shape_.config.top_k != 1 || shape_.config.weights != Weights::raw) return;
    const auto scale = static_cast<float>(shape_.config.weight_scale.to_double());
    for (std::size_t token = 0; token < group.tokens; ++token) {
      group.weight[token] = group.slot[token] >= 0 ? scale * sigmoid_[token] : 0;
    }
  }

 private:
  // Keeps the sigmoids of the logits of a tile's only choices.
  void keep_sigmoids(const std::uint16_t* expert) {
    for (std::size_t place = 0; place < tile_tokens; ++place) {
      sigmoid_.push_back(sigmoid(score_[std::size_t{expert[place]} * tile_tokens + place]));
    }
  }

  void set_scaled(const float* cost) {
    scaled_.resize(experts_ * tile_tokens);
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      const std::size_t row = expert * tile_tokens;
      for (std::size_t place = row; place < row + tile_tokens; ++place) {
        scaled_[place] = cost[place] * scale_[expert];
      }
    }
  }

  // The largest score of each token of a tile.
  void keep_best(float* best) const {
    std::copy_n(score_.data(), tile_tokens, best);
    for (std::size_t at = tile_tokens; at < score_.size(); ++at) {
      best[at % tile_tokens] = std::max(best[at % tile_tokens], score_[at]);
    }
  }

  float* logits_of(std::int64_t first_token) {
    return logits_.data() + static_cast<std::size_t>(first_token) * experts_;
  }

  // Sets scale_ for the tokens of a rank, and keeps their logits.
  void find_scale(const GroupLogits& logits, int rank) {
    const std::int64_t tokens = logits.tokens(rank);
    costs_.begin(tokens);
    const std::size_t tiles = static_cast<std::size_t>(tokens) / tile_tokens + 1;
    logits_.grow(tiles * experts_);
    for (std::int64_t token = 0; token < tokens; token += tile_tokens) {
      logits.fill_tile(rank, token, logits_of(token));
      costs_.set_tile(token, logits_of(token));
    }
    costs_.find_scale(scale_);
  }

  KindShape shape_;
  TileChooser tile_;
  std::size_t experts_;
  SinkhornCosts costs_;                // of a rank
  TileRows logits_;                    // the same: [tile, expert]
  std::vector<float> scale_;           // [expert]
  std::vector<float> score_, scaled_;  // [expert, 16]
  std::vector<float> sigmoid_;         // [token], with k = 1 only
};

void read(const RouterReading& in, RouterConfig& config) {
  const bool greedy = in.has_word("greedy", "sinkhorn or sinkhorn:greedy");
  config.parameters[0] = Decimal(greedy ? 1 : 0);
  config.top_k = in.k_beside();
  config.weights = Weights::raw;
}

std::string name(const RouterConfig& config) {
  return balances(config) ? "sinkhorn" : "sinkhorn:greedy";
}

void infer(RouterConfig& config) { config.parameters[0] = Decimal(1); }

std::unique_ptr<KindRouter> make(const KindShape& shape) {
  return make_chosen_router(shape, std::make_unique<SinkhornChooser>(shape));
}

// A round: two products with the [S, E] costs and their sums, counted in sinkhorn() of
// moe_utils.py; how many rounds is assumed.
constexpr double round_kernels = 4;
constexpr double assumed_rounds = 8;

GateWorkList price(const RouterConfig& config, const GateShape& shape) {
  const double rounds =
      balances(config) && !shape.backward ? 1 + round_kernels * assumed_rounds : 0;
  GateWorkList list = library_gate(
      config, shape, gate_kernels + gate_kernels_per_choice * config.choices() + rounds);
  if (rounds > 0) {
    if (shape.fused) add_gate_kernels(shape, rounds, list);
    // The host reads whether it has converged.
    list.push_back(
        {.kind = GateWork::Kind::host_read, .label = "host read", .count = assumed_rounds});
  }
  return list;
}

}  // namespace

constinit const RouterDescriptor sinkhorn_router{
    .head = "sinkhorn",
    .form = "sinkhorn[:greedy]",
    .short_form = "sinkhorn",
    .help =
        "the k best after tokens and experts are scaled to equal sums; greedy, and in a forward "
        "pass: the k best",
    .chooses_top_k = true,
    .chooses_together = true,
    .capacity = CapacityRule::by_factor_if_set,
    .no_counts = "the scales of experts depend on all tokens of a GPU",
    .read = read,
    .name = name,
    .infer = infer,
    .make = make,
    .price = price,
    .assumed = "8 rounds of scaling"};

}  // namespace moesim::routing
