// sinkhorn: the k best experts after exp(logits) is scaled so that tokens and experts have equal
// sums (Sinkhorn-Knopp; Megatron-Core's moe_router_load_balancing_type sinkhorn: S-BASE, Clark et
// al. 2022). In a forward pass alone the k best by logit. Weights are the softmax as it is, of k =
// 1 the sigmoid. Dropless unless a capacity factor is given.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/routing/groups/chooser.hpp"
#include "sim/routing/groups/tile_chooser.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"
#include "sim/routing/tokens/softmax.hpp"

namespace moesim::routing {

namespace {

// Both figures are those of megatron/core/transformer/moe/moe_utils.py.
constexpr float tolerance = 1e-4F;
constexpr float least = 1e-8F;
// The library has no limit; random logits take 5 to 15.
constexpr int most_rounds = 1000;

bool balances(const RouterConfig& config) { return config.parameters[0].is_zero(); }

class SinkhornChooser final : public Chooser {
 public:
  explicit SinkhornChooser(const KindShape& shape)
      : shape_(shape),
        tile_(shape.experts, shape.kernels),
        experts_(static_cast<std::size_t>(shape.experts)),
        scale_(experts_) {}

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
        logits.fill_tile(rank, token, tile_.tile());
        tile_.find_softmax();
        tile_.best_mass(top_k, mass + token);
        score_.assign(tile_.tile(), tile_.tile() + experts_ * tile_tokens);
        if (balances(shape_.config)) {
          scaled_ = cost_of(score_.data());
          for (std::size_t at = 0; at < scaled_.size(); ++at)
            scaled_[at] *= scale_[at / tile_tokens];
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

  // The largest score of each token of a tile.
  void keep_best(float* best) const {
    std::copy_n(score_.data(), tile_tokens, best);
    for (std::size_t at = tile_tokens; at < score_.size(); ++at) {
      best[at % tile_tokens] = std::max(best[at % tile_tokens], score_[at]);
    }
  }

  // exp(logit) of a tile, [expert][16]. A token's own scale changes neither its order nor, but for
  // `least`, the scales of experts: its largest logit is moved to within `largest_logit` of 0,
  // where exp stays in the range of float.
  std::vector<float> cost_of(const float* logit) const {
    constexpr float largest_logit = 40;
    float shift[tile_tokens];
    std::copy_n(logit, tile_tokens, shift);
    for (std::size_t at = tile_tokens; at < experts_ * tile_tokens; ++at) {
      shift[at % tile_tokens] = std::max(shift[at % tile_tokens], logit[at]);
    }
    for (float& largest : shift) {
      largest -= std::clamp(largest, -largest_logit, largest_logit);
    }
    std::vector<float> cost(experts_ * tile_tokens);
    for (std::size_t at = 0; at < cost.size(); ++at) {
      cost[at] = std::exp(logit[at] - shift[at % tile_tokens]);
    }
    return cost;
  }

  // scale_[expert], after rounds of
  //   token scale  = 1 / (S (sum over experts of scale x cost + least))
  //   expert scale = 1 / (E (sum over tokens of token scale x cost + least))
  // until expert scales change by at most the tolerance on average.
  void find_scale(const GroupLogits& logits, int rank) {
    const std::int64_t tokens = logits.tokens(rank);
    std::vector<float> cost;  // [token, expert]
    cost.reserve(static_cast<std::size_t>(tokens) * experts_);
    for (std::int64_t token = 0; token < tokens; token += tile_tokens) {
      logits.fill_tile(rank, token, tile_.tile());
      const auto valid =
          static_cast<std::size_t>(std::min<std::int64_t>(tile_tokens, tokens - token));
      const std::vector<float> of_tile = cost_of(tile_.tile());
      for (std::size_t place = 0; place < valid; ++place) {
        for (std::size_t expert = 0; expert < experts_; ++expert) {
          cost.push_back(of_tile[expert * tile_tokens + place]);
        }
      }
    }
    std::fill(scale_.begin(), scale_.end(), 1.0F);
    std::vector<double> sums(experts_);
    double change = 1;
    for (int round = 0; round < most_rounds && tokens > 0 && change > tolerance; ++round) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (const float* row = cost.data(); row < cost.data() + cost.size(); row += experts_) {
        float sum = 0;
        for (std::size_t expert = 0; expert < experts_; ++expert)
          sum += scale_[expert] * row[expert];
        const float of_token = 1 / static_cast<float>(tokens) / (sum + least);
        for (std::size_t expert = 0; expert < experts_; ++expert) {
          sums[expert] += static_cast<double>(of_token * row[expert]);
        }
      }
      change = 0;
      for (std::size_t expert = 0; expert < experts_; ++expert) {
        const float next =
            1 / static_cast<float>(experts_) / (static_cast<float>(sums[expert]) + least);
        change +=
            static_cast<double>(std::abs(next - scale_[expert])) / static_cast<double>(experts_);
        scale_[expert] = next;
      }
    }
  }

  KindShape shape_;
  TileChooser tile_;
  std::size_t experts_;
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
