#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "sim/base/random.hpp"
#include "sim/routing/groups/chooser.hpp"
#include "sim/routing/groups/tile_chooser.hpp"
#include "sim/routing/rules/expert_bias.hpp"
#include "sim/routing/rules/layer_sample.hpp"
#include "sim/routing/tokens/kept_groups.hpp"

namespace moesim::routing {

// Loss-free balancing (Wang et al. 2024): the score is a sigmoid, as there and in DeepSeek-V3,
// whose update speed 0.001 is relative to it. The bias is the result of `update_steps` steps of
// training, each on a new batch of the same source (GroupLogits::fill_training_tile). Groups limit
// the choices as in DeepSeek-V3's published model code, which sets all but the best groups' scores
// to -inf.
class BiasChooser final : public Chooser {
 public:
  explicit BiasChooser(const KindShape& shape)
      : shape_(shape),
        tile_(shape.experts, shape.kernels),
        per_group_(shape.experts / shape.config.groups),
        kept_(shape.config.groups, shape.config.kept_groups, shape.kernels),
        speed_(shape.config.parameters[0].to_double()),
        steps_(static_cast<int>(shape.config.parameters[1].floor_of_product(1))),
        summed_(std::min(static_cast<std::size_t>(per_group_), summed_scores(shape.config))),
        best_expert_(summed_ * tile_tokens),
        best_key_(summed_ * tile_tokens) {
    const auto choices = static_cast<std::size_t>(shape.config.top_k);
    expert_.resize(choices * tile_tokens);
    key_.resize(choices * tile_tokens);
    score_.resize(static_cast<std::size_t>(shape.experts) * tile_tokens);
  }

  KeepingRules rules(const RouterContext& /*context*/) const override {
    return {shape_.config, shape_.experts};
  }

  void start_layer(const GroupLogits& logits, const RouterContext& context) override {
    if (shape_.config.expert_bias) {
      bias_ = shape_.config.expert_bias->of_layer(context.layer);
      return;
    }
    const auto experts = static_cast<std::size_t>(shape_.experts);
    bias_.assign(experts, 0.0F);
    std::int64_t tile = 0;
    int step = 0;
    if (steps_ > 2 * last_steps && settle(logits, tile)) step = steps_ - last_steps;
    for (; step < steps_; ++step) train(logits, tile);
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
        // The k best scores without the bias.
        shape_.kernels.largest(score_.data(), 0, shape_.experts, shape_.config.top_k,
                               {expert_.data(), key_.data(), tile_tokens});
        float* mass = out.reference_mass.data() + begin + token;
        std::fill_n(mass, tile_tokens, 0.0F);
        for (std::size_t at = 0; at < key_.size(); ++at) mass[at % tile_tokens] += key_[at];
      });
      begin += logits.tokens(rank);
    }
  }

  // What counts of a layer follow from. In a trained router the load of every expert fluctuates
  // around k / E, because its bias is never more right than the steps that change it: its error is
  // a walk of `update_speed` per step, back and forth by the sign of a noisy load. So the shares
  // are k / E plus slope x error, with the slope (change of a share with its bias) measured on
  // sampled tokens and the walk drawn for each expert by itself; the sample is that of the steps
  // themselves, after the first ones. Where training does not reach that state (few steps,
  // popularities far apart), it is carried out, and shares are frequencies. Given biases are not
  // trained, and the shares are left to the sample. The sample's choices give the loss.
  LayerSample sample(const GroupLogits& logits, const StreamKey& stream, std::int64_t tokens);

 private:
  // A step of training on the tiles from `tile` on; advances `tile`.
  void train(const GroupLogits& logits, std::int64_t& tile) {
    load_.assign(bias_.size(), 0);
    std::int64_t tokens = 0;
    for (std::int64_t left = tiles_per_step(); left > 0; --left) {
      const int valid = logits.fill_training_tile(tile++, tile_.tile());
      select();
      add_load(valid);
      tokens += valid;
    }
    move_biases(tokens);
  }

  // The tile last selected.
  void add_load(int valid) {
    for (std::size_t at = 0; at < expert_.size(); ++at) {
      if (static_cast<int>(at % tile_tokens) < valid) ++load_[expert_[at]];
    }
  }

  void move_biases(std::int64_t tokens) {
    const auto speed = static_cast<float>(speed_);
    for (std::size_t expert = 0; expert < bias_.size(); ++expert) {
      const std::int64_t above = load_[expert] * shape_.experts - tokens * shape_.config.top_k;
      if (above != 0) bias_[expert] += above > 0 ? -speed : speed;
    }
  }

  // The result of a converged training does not depend on its start: a wrong bias changes by the
  // update speed in each step until its load fluctuates around the mean, which takes about 20 steps
  // for an error of 5 speeds. Long trainings therefore start from biases with which score + bias
  // exceeds a common threshold for a share k / E of a sample's tokens at every expert, and run only
  // the last steps. Returns false, with biases 0, if the steps might not have been enough to
  // converge.
  static constexpr int last_steps = 128;

  bool settle(const GroupLogits& logits, std::int64_t& tile) {
    constexpr std::int64_t sample_tiles = 256;
    std::vector<std::vector<float>> scores(bias_.size());
    for (std::int64_t left = sample_tiles; left > 0; --left) {
      const auto valid =
          static_cast<std::ptrdiff_t>(logits.fill_training_tile(tile++, tile_.tile()));
      find_scores();
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
    std::vector<std::uint32_t> places(tokens + 64);
    std::vector<float> highest(tokens + 64);
    for (std::vector<float>& of_expert : scores) {
      of_expert.resize(tokens + tile_tokens, 0.0F);  // the format of largest_places
      shape_.kernels.largest_places(of_expert.data(), tokens, above + 1, places.data(),
                                    highest.data());
      const auto end = highest.begin() + static_cast<std::ptrdiff_t>(above + 1);
      const float threshold = *std::min_element(highest.begin(), end);
      thresholds.push_back(threshold);
    }
    const auto [least, most] = std::minmax_element(thresholds.begin(), thresholds.end());
    const double reach = speed_ * steps_;
    if (*most - *least > reach / 2) return false;
    for (std::size_t expert = 0; expert < bias_.size(); ++expert) {
      bias_[expert] = (*most + *least) / 2 - thresholds[expert];
    }
    return true;
  }

  struct Sampling {
    std::int64_t tile = 0;  // the next one
    LayerSample found;      // expert: with room for all tokens
    std::size_t held = 0;   // tokens of it
    double residual = 0;    // sum over the tokens that it was found of
    double examined = 0;    // these
    double moved = 0;       // routes of a higher bias less those of a lower one
    double shifted = 0;     // experts of all tokens that the bias was shifted for
  };
  std::int64_t steps_before_sample() const;
  void sample_steps(const GroupLogits& logits, Sampling& sampling);
  void sample_tiles(const GroupLogits& logits, std::int64_t tiles, bool slope, Sampling& sampling);
  void keep_choices(Sampling& sampling);
  double residual_of_tile();
  double routes_of_subset(int part, float shift, const std::vector<float>& logits);
  std::vector<double> walked_shares(double slope, const StreamKey& key) const;

  // Enough tokens for a mean load of 32 routes per step, so that the sign of its error is rarely
  // random.
  std::int64_t tiles_per_step() const {
    constexpr std::int64_t least_tokens = 512;
    constexpr std::int64_t mean_load = 32;
    const std::int64_t tokens =
        std::max<std::int64_t>(least_tokens, mean_load * shape_.experts / shape_.config.top_k);
    return (tokens + tile_tokens - 1) / tile_tokens;
  }

  // score_ from the tile's logits; the tile then holds score + bias.
  void find_scores() {
    shape_.kernels.biased_sigmoids(tile_.tile(), shape_.experts, bias_.data(), score_.data());
  }

  // The scores, then the choices by score + bias.
  void select() {
    find_scores();
    if (shape_.config.kept_groups < shape_.config.groups) mask_groups();
    shape_.kernels.largest(tile_.tile(), 0, shape_.experts, shape_.config.top_k,
                           {expert_.data(), key_.data(), tile_tokens});
  }

  // Converts the tile to scores plus bias, with -inf in all groups except the `kept_groups` best by
  // the sum of their best (GroupScore); ties: the lower group first.
  void mask_groups() {
    const auto groups = static_cast<std::size_t>(shape_.config.groups);
    for (std::size_t group = 0; group < groups; ++group) {
      const int first = static_cast<int>(group) * per_group_;
      shape_.kernels.largest(tile_.tile(), first, first + per_group_, static_cast<int>(summed_),
                             {best_expert_.data(), best_key_.data(), tile_tokens});
      float* sum = kept_.scores(group);
      for (std::size_t place = 0; place < tile_tokens; ++place) sum[place] = best_key(place);
      for (std::size_t at = tile_tokens; at < summed_ * tile_tokens; ++at) {
        sum[at % tile_tokens] += best_key(at);
      }
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        if (best_key_[place] == hopeless) sum[place] = hopeless;
      }
    }
    kept_.find();
    for (std::size_t group = 0; group < groups; ++group) mask(group);
  }

  // An expert with logit -inf has score 0, as in the published code; a group of such alone comes
  // last.
  float best_key(std::size_t at) const {
    return best_key_[at] == hopeless ? bias_[best_expert_[at]] : best_key_[at];
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

  // For an expert with logit -inf: below every value of a finite logit, above those of other
  // groups.
  static constexpr float hopeless = std::numeric_limits<float>::lowest();

  KindShape shape_;
  TileChooser tile_;
  int per_group_;  // experts
  KeptGroups kept_;
  double speed_;                            // change of a bias per step
  int steps_;                               // of training
  std::size_t summed_;                      // scores that make that of a group
  std::vector<std::uint16_t> best_expert_;  // [summed, 16], of a group
  std::vector<float> best_key_;             // and their keys
  std::vector<float> bias_;                 // [expert]
  std::vector<std::int64_t> load_;          // [expert]
  std::vector<float> score_;                // [expert, 16]
  std::vector<std::uint16_t> expert_;       // [choice, 16]
  std::vector<float> key_;                  // [choice, 16]
};

}  // namespace moesim::routing
