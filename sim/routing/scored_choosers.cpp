#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/base/random.hpp"
#include "sim/routing/chooser.hpp"
#include "sim/routing/kept_groups.hpp"

namespace moesim::routing {

namespace {

class ScoredChooser : public Chooser {
 public:
  explicit ScoredChooser(const KindShape& shape)
      : shape_(shape), tile_(shape.experts, shape.kernels) {}

  KeepingRules rules(const RouterContext& /*context*/) const override {
    return {shape_.config, shape_.experts};
  }

 protected:
  KindShape shape_;
  TileChooser tile_;
};

// With probability P all GPUs skip the exchange; a token then has what its own GPU's experts offer,
// which may be fewer than k.
class DropoutChooser final : public ScoredChooser {
 public:
  using ScoredChooser::ScoredChooser;

  KeepingRules rules(const RouterContext& context) const override {
    KeepingRules rules{shape_.config, shape_.experts};
    if (!skips(context)) return rules;
    const int own = shape_.experts / shape_.ranks;
    rules.config.top_k = std::min(rules.config.top_k, own);
    rules.config.fill_in = rules.config.fill_in && own > rules.config.top_k;
    rules.config.capacity_scope = CapacityScope::source;  // nobody shares a GPU's experts with it
    rules.capacity_experts = own;
    rules.exchanged = false;
    rules.own_experts_only = true;
    return rules;
  }

  void choose(const GroupLogits& logits, const RouterContext& context, Choices& out) override {
    const bool skipped = skips(context);
    const KeepingRules kept = rules(context);
    const int own = shape_.experts / shape_.ranks;
    if (skipped) out.reference_mass.resize(whole(logits));
    std::int64_t begin = 0;
    for (int rank = 0; rank < logits.ranks(); ++rank) {
      const LocalExperts local =
          local_experts(kept.config, shape_.experts, shape_.ranks, rank, context.place);
      out.table.append_chosen(logits.tokens(rank), [&](std::int64_t token, const ChoiceOutput& to) {
        logits.fill_tile(rank, token, tile_.tile());
        if (skipped) {
          tile_.find_softmax();
          tile_.best(rank * own, (rank + 1) * own, kept.config.choices(), to);
          tile_.best_mass(shape_.config.top_k, out.reference_mass.data() + begin + token);
        } else {
          tile_.find_best(kept.config.choices(), to);
        }
        if (local.wanted > 0) {
          tile_.best(local.first, local.last, local.wanted, out.table.local_output(token));
        }
      });
      out.table.set_local_places(local.wanted);
      begin += logits.tokens(rank);
    }
  }

 private:
  static std::size_t whole(const GroupLogits& logits) {
    return static_cast<std::size_t>(logits.all_tokens()) + tile_tokens;
  }

  // One coin for all GPUs.
  bool skips(const RouterContext& context) const {
    Stream stream({context.seed, Purpose::skipped_exchange, context.replica, context.layer, 0});
    return stream.uniform() < shape_.config.dropout.to_double();
  }
};

// Loss-free balancing (Wang et al. 2024): the score is a sigmoid, as there and in DeepSeek-V3,
// whose update speed 0.001 is relative to it. The bias is what `update_steps` steps of training
// leave, each on a fresh batch of the same source (GroupLogits::fill_training_tile). Groups limit
// the choices as in DeepSeek-V3's published model code, which sets all but the best groups' scores
// to -inf.
class BiasChooser final : public ScoredChooser {
 public:
  explicit BiasChooser(const KindShape& shape)
      : ScoredChooser(shape),
        per_group_(shape.experts / shape.config.groups),
        kept_(shape.config.groups, shape.config.kept_groups, shape.kernels) {
    const auto choices = static_cast<std::size_t>(shape.config.top_k);
    expert_.resize(choices * tile_tokens);
    key_.resize(choices * tile_tokens);
    score_.resize(static_cast<std::size_t>(shape.experts) * tile_tokens);
  }

  void start_layer(const GroupLogits& logits, const RouterContext& /*context*/) override {
    const auto experts = static_cast<std::size_t>(shape_.experts);
    bias_.assign(experts, 0.0F);
    const auto speed = static_cast<float>(shape_.config.update_speed.to_double());
    std::vector<std::int64_t> load(experts);
    std::int64_t tile = 0;
    for (int step = 0; step < shape_.config.update_steps; ++step) {
      std::fill(load.begin(), load.end(), 0);
      std::int64_t tokens = 0;
      for (std::int64_t left = tiles_per_step(); left > 0; --left) {
        const int valid = logits.fill_training_tile(tile++, tile_.tile());
        select();
        for (std::size_t at = 0; at < expert_.size(); ++at) {
          if (static_cast<int>(at % tile_tokens) < valid) ++load[expert_[at]];
        }
        tokens += valid;
      }
      for (std::size_t expert = 0; expert < experts; ++expert) {
        const std::int64_t above = load[expert] * shape_.experts - tokens * shape_.config.top_k;
        if (above != 0) bias_[expert] += above > 0 ? -speed : speed;
      }
    }
  }

  void choose(const GroupLogits& logits, const RouterContext& /*context*/, Choices& out) override {
    out.reference_mass.resize(static_cast<std::size_t>(logits.all_tokens()) + tile_tokens);
    const auto top_k = static_cast<std::size_t>(shape_.config.top_k);
    std::int64_t begin = 0;
    for (int rank = 0; rank < logits.ranks(); ++rank) {
      out.table.append_chosen(logits.tokens(rank), [&](std::int64_t token, const ChoiceOutput& to) {
        logits.fill_tile(rank, token, tile_.tile());
        select();
        for (std::size_t choice = 0; choice < top_k; ++choice) {
          for (std::size_t place = 0; place < tile_tokens; ++place) {
            const std::uint16_t expert = expert_[choice * tile_tokens + place];
            to.expert[choice * to.stride + place] = expert;
            to.probability[choice * to.stride + place] =
                score_[std::size_t{expert} * tile_tokens + place];
          }
        }
        // What the k best scores would have been without the bias.
        shape_.kernels.largest(score_.data(), 0, shape_.experts, shape_.config.top_k,
                               {expert_.data(), key_.data(), tile_tokens});
        float* mass = out.reference_mass.data() + begin + token;
        std::fill_n(mass, tile_tokens, 0.0F);
        for (std::size_t at = 0; at < key_.size(); ++at) mass[at % tile_tokens] += key_[at];
      });
      begin += logits.tokens(rank);
    }
  }

 private:
  // So many that a step's mean load is 32 routes, and its sign seldom chance.
  std::int64_t tiles_per_step() const {
    constexpr std::int64_t least_tokens = 512;
    constexpr std::int64_t mean_load = 32;
    const std::int64_t tokens =
        std::max<std::int64_t>(least_tokens, mean_load * shape_.experts / shape_.config.top_k);
    return (tokens + tile_tokens - 1) / tile_tokens;
  }

  // score_ from the tile's logits, then the choices by score + bias. As sigmoid() has it, but with
  // exp from the vectorised kernel: exp(-|a| - 0) / 1.
  void select() {
    constexpr float never = -std::numeric_limits<float>::infinity();
    alignas(64) static constexpr float zeros[tile_tokens] = {};
    alignas(64) static constexpr float ones[tile_tokens] = {1, 1, 1, 1, 1, 1, 1, 1,
                                                            1, 1, 1, 1, 1, 1, 1, 1};
    float* logit = tile_.tile();
    for (std::size_t at = 0; at < score_.size(); ++at) score_[at] = -std::fabs(logit[at]);
    shape_.kernels.probabilities(zeros, ones, shape_.experts,
                                 {expert_.data(), score_.data(), tile_tokens});
    for (std::size_t expert = 0; expert < bias_.size(); ++expert) {
      const float bias = bias_[expert];
      for (std::size_t at = expert * tile_tokens; at < (expert + 1) * tile_tokens; ++at) {
        const float small = score_[at];
        score_[at] = (logit[at] < 0 ? small : 1.0F) / (1.0F + small);
        logit[at] = logit[at] == never ? hopeless : score_[at] + bias;
      }
    }
    if (shape_.config.kept_groups < shape_.config.groups) mask_groups();
    shape_.kernels.largest(logit, 0, shape_.experts, shape_.config.top_k,
                           {expert_.data(), key_.data(), tile_tokens});
  }

  // Of the tile as scores with their bias: -inf in all groups but the `kept_groups` best, by the
  // sum of their two best, the lower group first among equals.
  void mask_groups() {
    const auto groups = static_cast<std::size_t>(shape_.config.groups);
    const int listed = std::min(per_group_, 2);
    for (std::size_t group = 0; group < groups; ++group) {
      const int first = static_cast<int>(group) * per_group_;
      shape_.kernels.largest(tile_.tile(), first, first + per_group_, listed,
                             {pair_expert_, pair_key_, tile_tokens});
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        float& sum = kept_.scores(group)[place];
        sum = pair_key(place);
        if (listed > 1) sum += pair_key(place + tile_tokens);
      }
    }
    kept_.find();
    for (std::size_t group = 0; group < groups; ++group) {
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        if (!kept_.keeps(group, place)) mask(group, place);
      }
    }
  }

  // An expert of logit -inf has score 0, as the published code has it.
  float pair_key(std::size_t at) const {
    return pair_key_[at] == hopeless ? bias_[pair_expert_[at]] : pair_key_[at];
  }

  void mask(std::size_t group, std::size_t place) {
    const auto per_group = static_cast<std::size_t>(per_group_);
    float* cell = tile_.tile() + group * per_group * tile_tokens + place;
    for (std::size_t left = per_group; left > 0; --left, cell += tile_tokens) {
      *cell = -std::numeric_limits<float>::infinity();
    }
  }

  // Of an expert of logit -inf, below all that a finite one may have, above those of other groups.
  static constexpr float hopeless = std::numeric_limits<float>::lowest();

  int per_group_;  // experts
  KeptGroups kept_;
  std::uint16_t pair_expert_[2 * tile_tokens] = {};  // a group's two best
  float pair_key_[2 * tile_tokens] = {};
  std::vector<float> bias_;            // [expert]
  std::vector<float> score_;           // [expert, 16]
  std::vector<std::uint16_t> expert_;  // [choice, 16]
  std::vector<float> key_;             // [choice, 16]
};

}  // namespace

std::unique_ptr<Chooser> make_dropout_chooser(const KindShape& shape) {
  return std::make_unique<DropoutChooser>(shape);
}

std::unique_ptr<Chooser> make_bias_chooser(const KindShape& shape) {
  return std::make_unique<BiasChooser>(shape);
}

}  // namespace moesim::routing
