#include <algorithm>
#include <functional>
#include <limits>

#include "sim/base/random.hpp"
#include "sim/routing/routers/chooser.hpp"
#include "sim/routing/tokens/kept_groups.hpp"

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
    rules.config = shape_.config.among_own(own);
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
    const int steps = shape_.config.update_steps;
    std::int64_t tile = 0;
    int step = 0;
    if (steps > 2 * last_steps && settle(logits, tile)) step = steps - last_steps;
    for (; step < steps; ++step) train(logits, tile);
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
  // A step of training on the tiles from `tile` on, which it moves.
  void train(const GroupLogits& logits, std::int64_t& tile) {
    const auto speed = static_cast<float>(shape_.config.update_speed.to_double());
    load_.assign(bias_.size(), 0);
    std::int64_t tokens = 0;
    for (std::int64_t left = tiles_per_step(); left > 0; --left) {
      const int valid = logits.fill_training_tile(tile++, tile_.tile());
      select();
      for (std::size_t at = 0; at < expert_.size(); ++at) {
        if (static_cast<int>(at % tile_tokens) < valid) ++load_[expert_[at]];
      }
      tokens += valid;
    }
    for (std::size_t expert = 0; expert < bias_.size(); ++expert) {
      const std::int64_t above = load_[expert] * shape_.experts - tokens * shape_.config.top_k;
      if (above != 0) bias_[expert] += above > 0 ? -speed : speed;
    }
  }

  // Where a training settles, it forgets where it started: a bias that is off moves by a speed a
  // step until its load scatters around the mean, which takes some 20 steps for 5 speeds. So long
  // trainings start where score + bias exceeds one threshold for a share k / E of a sample's
  // tokens, at every expert, and carry out the last steps alone. False, with the biases at 0, where
  // the steps might not have sufficed to get there.
  static constexpr int last_steps = 128;

  bool settle(const GroupLogits& logits, std::int64_t& tile) {
    constexpr std::int64_t sample_tiles = 256;
    std::vector<std::vector<float>> scores(bias_.size());
    for (std::int64_t left = sample_tiles; left > 0; --left) {
      const auto valid =
          static_cast<std::ptrdiff_t>(logits.fill_training_tile(tile++, tile_.tile()));
      select();
      for (std::size_t expert = 0; expert < scores.size(); ++expert) {
        const float* row = score_.data() + expert * tile_tokens;
        scores[expert].insert(scores[expert].end(), row, row + valid);
      }
    }
    const std::size_t tokens = scores.front().size();
    const std::size_t above =
        tokens * static_cast<std::size_t>(shape_.config.top_k) / scores.size();
    if (above == 0 || above == tokens) return false;
    std::vector<float> thresholds;
    for (std::vector<float>& of_expert : scores) {
      const auto threshold = of_expert.begin() + static_cast<std::ptrdiff_t>(above);
      std::nth_element(of_expert.begin(), threshold, of_expert.end(), std::greater<>());
      thresholds.push_back(*threshold);
    }
    const auto [least, most] = std::minmax_element(thresholds.begin(), thresholds.end());
    const double reach = shape_.config.update_speed.to_double() * shape_.config.update_steps;
    if (*most - *least > reach / 2) return false;
    for (std::size_t expert = 0; expert < bias_.size(); ++expert) {
      bias_[expert] = (*most + *least) / 2 - thresholds[expert];
    }
    return true;
  }

  // So many that a step's mean load is 32 routes, and its sign seldom chance.
  std::int64_t tiles_per_step() const {
    constexpr std::int64_t least_tokens = 512;
    constexpr std::int64_t mean_load = 32;
    const std::int64_t tokens =
        std::max<std::int64_t>(least_tokens, mean_load * shape_.experts / shape_.config.top_k);
    return (tokens + tile_tokens - 1) / tile_tokens;
  }

  // score_ from the tile's logits, then the choices by score + bias.
  void select() {
    float* logit = tile_.tile();
    shape_.kernels.biased_sigmoids(logit, shape_.experts, bias_.data(), score_.data());
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
    for (std::size_t group = 0; group < groups; ++group) mask(group);
  }

  // An expert of logit -inf has score 0, as the published code has it.
  float pair_key(std::size_t at) const {
    return pair_key_[at] == hopeless ? bias_[pair_expert_[at]] : pair_key_[at];
  }

  void mask(std::size_t group) {
    constexpr float infinite = std::numeric_limits<float>::infinity();
    float most[tile_tokens];
    for (std::size_t place = 0; place < tile_tokens; ++place) {
      most[place] = kept_.keeps(group, place) ? infinite : -infinite;
    }
    const auto experts = static_cast<std::size_t>(per_group_);
    float* row = tile_.tile() + group * experts * tile_tokens;
    for (std::size_t left = experts; left > 0; --left, row += tile_tokens) {
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        row[place] = row[place] < most[place] ? row[place] : most[place];
      }
    }
  }

  // Of an expert of logit -inf, below all that a finite one may have, above those of other groups.
  static constexpr float hopeless = std::numeric_limits<float>::lowest();

  int per_group_;  // experts
  KeptGroups kept_;
  std::uint16_t pair_expert_[2 * tile_tokens] = {};  // a group's two best
  float pair_key_[2 * tile_tokens] = {};
  std::vector<float> bias_;            // [expert]
  std::vector<std::int64_t> load_;     // [expert]
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
