#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "sim/base/random.hpp"
#include "sim/routing/groups/chooser.hpp"
#include "sim/routing/groups/tile_chooser.hpp"
#include "sim/routing/rules/expert_bias.hpp"
#include "sim/routing/rules/layer_sample.hpp"
#include "sim/routing/tokens/kept_groups.hpp"
#include "sim/routing/tokens/tile_rows.hpp"

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
        best_expert_(static_cast<std::size_t>(shape.config.groups) * summed_ * tile_tokens),
        best_key_(best_expert_.size()),
        bounds_(static_cast<std::size_t>(shape.config.groups) * tile_tokens) {
    const auto choices = static_cast<std::size_t>(shape.config.top_k);
    expert_.resize(choices * tile_tokens);
    key_.resize(choices * tile_tokens);
    score_.grow(static_cast<std::size_t>(shape.experts));
  }

  KeepingRules rules(const RouterContext& /*context*/) const override {
    return {shape_.config, shape_.experts};
  }

  void start_layer(const GroupLogits& logits, const RouterContext& context) override {
    if (has_given_biases()) {
      bias_ = shape_.config.expert_bias->of_layer(context.layer);
      return;
    }
    const GroupLogits* const others = logits.trained_on();
    train_biases(others == nullptr ? logits : *others);
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
        if (shape_.config.has_capacity()) {
          std::copy_n(key_.data(), tile_tokens, out.table.best_output(token));
        }
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
  // sampled tokens, where biases are far apart for eighths of the experts in the order of their
  // biases, and the walk drawn for each expert by itself; the sample is that of the steps
  // themselves, after the first ones. Where training does not reach that state (few steps), it
  // is carried out, and shares are frequencies; these also where popularities are so far apart that
  // a step of a nearly flat sigmoid's bias changes a load by a third, and where biases are
  // trained on other logits. Given biases are not trained, and the shares are left to the sample.
  // The sample's choices give the loss.
  LayerSample sample(const GroupLogits& logits, const StreamKey& stream, std::int64_t tokens);

 private:
  bool has_given_biases() const {
    const auto& bias = shape_.config.expert_bias;
    return bias != nullptr && bias->trained_on() == nullptr;
  }

  // All steps, from biases of zero.
  void train_biases(const GroupLogits& logits) {
    bias_.assign(static_cast<std::size_t>(shape_.experts), 0.0F);
    std::int64_t tile = 0;
    int step = 0;
    if (steps_ > 2 * last_steps && settle(logits, tile)) step = steps_ - last_steps;
    for (; step < steps_; ++step) train(logits, tile);
  }

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
  // the last steps. Until loads are even the furthest biases approach each other by two speeds a
  // step, so half of the steps would do for thresholds that are steps x speed apart. Returns false,
  // with biases 0, if they are further apart: the steps might not have been enough to converge.
  static constexpr int last_steps = 128;

  bool settle(const GroupLogits& logits, std::int64_t& tile) {
    constexpr std::size_t sample_tiles = 256;
    // [expert, token], a tile more for the format of largest_places. Not filled: 4 MB.
    constexpr std::size_t stride = (sample_tiles + 1) * tile_tokens;
    const auto scores = std::make_unique_for_overwrite<float[]>(bias_.size() * stride);
    std::size_t tokens = 0;
    for (std::size_t left = sample_tiles; left > 0; --left) {
      const auto valid = static_cast<std::size_t>(logits.fill_training_tile(tile++, tile_.tile()));
      find_scores();
      for (std::size_t expert = 0; expert < bias_.size(); ++expert) {
        std::copy_n(score_.data() + expert * tile_tokens, valid,
                    scores.get() + expert * stride + tokens);
      }
      tokens += valid;
    }
    const std::size_t above = tokens * static_cast<std::size_t>(shape_.config.top_k) / bias_.size();
    if (above == 0 || above == tokens) return false;
    std::vector<float> thresholds;
    std::vector<std::uint32_t> places(tokens + 64);
    std::vector<float> highest(tokens + 64);
    for (std::size_t expert = 0; expert < bias_.size(); ++expert) {
      float* of_expert = scores.get() + expert * stride;
      std::fill_n(of_expert + tokens, tile_tokens, 0.0F);
      shape_.kernels.largest_places(of_expert, tokens, above + 1, places.data(), highest.data());
      const auto end = highest.begin() + static_cast<std::ptrdiff_t>(above + 1);
      thresholds.push_back(*std::min_element(highest.begin(), end));
    }
    const auto [least, most] = std::minmax_element(thresholds.begin(), thresholds.end());
    const double reach = speed_ * steps_;
    if (*most - *least > reach) return false;
    for (std::size_t expert = 0; expert < bias_.size(); ++expert) {
      bias_[expert] = (*most + *least) / 2 - thresholds[expert];
    }
    far_apart_ = *most - *least > reach / 2;
    if (far_apart_) approach(logits, tile);
    saturated_ = *most - *least > 0.75;
    return true;
  }

  // Far apart, thresholds alone are a rough guess: a popular expert's sigmoids saturate and an
  // unpopular one's do not, so that equal shares of all tokens are not equal loads where choices
  // compete, above all inside groups. Longer steps first, each length often enough to correct
  // 8 steps: 240 speeds in all, in 32 steps.
  void approach(const GroupLogits& logits, std::int64_t& tile) {
    constexpr int longest = 16;
    constexpr int of_each = 8;
    const double speed = speed_;
    for (int length = longest; length > 1; length /= 2) {
      speed_ = speed * length;
      for (int left = of_each; left > 0; --left) train(logits, tile);
    }
    speed_ = speed;
  }

  struct Sampling {
    std::int64_t tile = 0;  // the next one
    LayerSample found;      // expert: with room for all tokens
    std::size_t held = 0;   // tokens of it
    double residual = 0;    // sum over the tokens that were examined
    double examined = 0;    // so many tokens
    // [part]: routes of a higher bias less those of a lower one, and the experts of all tokens that
    // the bias was shifted for.
    std::vector<double> moved, shifted;
  };
  std::int64_t steps_before_sample() const;
  void sample_steps(const GroupLogits& logits, Sampling& sampling);
  void sample_tiles(const GroupLogits& logits, std::int64_t tiles, bool slope, Sampling& sampling);
  void sample_frequencies(const GroupLogits& logits, std::int64_t tokens, Sampling& sampling);
  void keep_choices(Sampling& sampling);
  void keep_scores(Sampling& sampling);
  double residual_of_tile();
  void set_parts(Sampling& sampling);
  double routes_of_subset(int part, float shift);
  std::vector<double> slopes_of(const Sampling& sampling) const;
  std::vector<double> walked_shares(const std::vector<double>& slopes, const StreamKey& key) const;

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
    choose_experts();
  }

  // The tile holds score + bias, and does so afterwards.
  void choose_experts() {
    const ChoiceOutput out{expert_.data(), key_.data(), tile_tokens};
    const RouterConfig& config = shape_.config;
    if (config.kept_groups == config.groups) {
      shape_.kernels.largest(tile_.tile(), 0, shape_.experts, config.top_k, out);
      return;
    }
    find_groups();
    if (find_bounds() && shape_.kernels.largest_reaching(tile_.tile(), config.groups, per_group_,
                                                         bounds_.data(), config.top_k, out)) {
      return;
    }
    mask_groups();
    shape_.kernels.largest(masked_.data(), 0, shape_.experts, config.top_k, out);
  }

  // The `kept_groups` best groups of each token by the sum of their best (GroupScore); ties: the
  // lower group first.
  void find_groups() {
    const auto groups = static_cast<std::size_t>(shape_.config.groups);
    shape_.kernels.largest_of_groups(tile_.tile(), shape_.config.groups, per_group_,
                                     static_cast<int>(summed_),
                                     {best_expert_.data(), best_key_.data(), tile_tokens});
    const std::size_t size = summed_ * tile_tokens;
    for (std::size_t group = 0; group < groups; ++group) {
      const float* keys = best_key_.data() + group * size;
      float* sum = kept_.scores(group);
      unsigned hopeless_keys = 0;
      for (std::size_t row = 0; row < size; row += tile_tokens) {
        for (std::size_t place = 0; place < tile_tokens; ++place) {
          hopeless_keys |= keys[row + place] == hopeless ? 1U : 0U;
        }
      }
      if (hopeless_keys == 0) {
        for (std::size_t place = 0; place < tile_tokens; ++place) sum[place] = keys[place];
        for (std::size_t at = tile_tokens; at < size; ++at) sum[at % tile_tokens] += keys[at];
        continue;
      }
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        sum[place] = best_key(group * size + place);
      }
      for (std::size_t at = tile_tokens; at < size; ++at) {
        sum[at % tile_tokens] += best_key(group * size + at);
      }
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        if (keys[place] == hopeless) sum[place] = hopeless;
      }
    }
    kept_.find();
  }

  // A bound for each group that at least top_k experts of every token reach, and few more: the
  // least of the scores that make its groups', and none in groups that it may not go to. False
  // where these are fewer than top_k.
  bool find_bounds() {
    const auto groups = static_cast<std::size_t>(shape_.config.groups);
    if (summed_ * static_cast<std::size_t>(shape_.config.kept_groups) <
        static_cast<std::size_t>(shape_.config.top_k)) {
      return false;
    }
    constexpr float infinite = std::numeric_limits<float>::infinity();
    float least[tile_tokens];
    std::fill(std::begin(least), std::end(least), infinite);
    for (std::size_t group = 0; group < groups; ++group) {
      const std::uint32_t* kept = kept_.masks(group);
      const float* last = best_key_.data() + ((group + 1) * summed_ - 1) * tile_tokens;
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        const float bound = kept[place] != 0 ? last[place] : infinite;
        least[place] = bound < least[place] ? bound : least[place];
      }
    }
    for (std::size_t group = 0; group < groups; ++group) {
      const std::uint32_t* kept = kept_.masks(group);
      float* bound = bounds_.data() + group * tile_tokens;
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        bound[place] = kept[place] != 0 ? least[place] : infinite;
      }
    }
    return true;
  }

  // An expert with logit -inf has score 0, as in the published code; a group of such alone comes
  // last.
  float best_key(std::size_t at) const {
    return best_key_[at] == hopeless ? bias_[best_expert_[at]] : best_key_[at];
  }

  // Copies the tile with -inf in all groups but those that a token may go to.
  void mask_groups() {
    constexpr float infinite = std::numeric_limits<float>::infinity();
    const auto experts = static_cast<std::size_t>(per_group_);
    masked_.grow(static_cast<std::size_t>(shape_.experts));
    for (std::size_t expert = 0; expert < bias_.size(); ++expert) {
      const std::uint32_t* kept = kept_.masks(expert / experts);
      const float* from = tile_.tile() + expert * tile_tokens;
      float* to = masked_.data() + expert * tile_tokens;
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        to[place] = kept[place] != 0 ? from[place] : -infinite;
      }
    }
  }

  // For an expert with logit -inf: below every value of a finite logit, above those of other
  // groups.
  static constexpr float hopeless = std::numeric_limits<float>::lowest();

  KindShape shape_;
  TileChooser tile_;
  int per_group_;  // experts of each group
  KeptGroups kept_;
  double speed_;                            // change of a bias per step
  int steps_;                               // of training
  std::size_t summed_;                      // scores that make that of a group
  std::vector<std::uint16_t> best_expert_;  // [group, summed, 16]
  std::vector<float> best_key_;             // and their keys
  std::vector<float> bounds_;               // [group, 16]
  std::vector<float> bias_;                 // [expert]
  std::vector<std::int64_t> load_;          // [expert]
  bool far_apart_ = false;                  // the biases of the layer: see approach()
  bool saturated_ = false;                  // and some sigmoids nearly flat
  std::vector<int> part_;                   // [expert], of those shifted together
  TileRows score_;                          // [expert, 16]
  TileRows masked_;                         // the same
  std::vector<std::uint16_t> expert_;       // [choice, 16]
  std::vector<float> key_;                  // [choice, 16]
};

}  // namespace moesim::routing
