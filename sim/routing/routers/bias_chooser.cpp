// Counts of the bias-balanced router: see BiasChooser::sample.
#include "sim/routing/routers/bias_chooser.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace moesim::routing {

namespace {

// settle() knows nothing of groups, nor that a token's choices compete, which matters most among
// few experts: as many steps as so many logits allow make up for it.
constexpr std::int64_t first_logits = 1 << 21;
constexpr std::int64_t first_steps = 8;  // at least
// Where shares are frequencies: 1 % of a share of 1/32.
constexpr std::int64_t counted_tiles = 16384;
// The slope: one expert in 8 gets a bias that is higher, then lower by this much.
constexpr int parts = 8;
constexpr float shift_of_bias = 0.01F;
constexpr std::int64_t slope_every = 4;  // tiles
constexpr std::int64_t residual_every = 4;

}  // namespace

LayerSample BiasChooser::sample(const GroupLogits& logits, const StreamKey& stream,
                                std::int64_t tokens) {
  const bool given = has_given_biases();
  const GroupLogits* const others = given ? nullptr : logits.trained_on();
  bias_ = given ? shape_.config.expert_bias->of_layer(stream.layer)
                : std::vector<float>(static_cast<std::size_t>(shape_.experts), 0.0F);
  Sampling sampling;
  LayerSample& found = sampling.found;
  found.tokens = static_cast<std::size_t>(tokens);
  found.expert.resize(found.tokens * static_cast<std::size_t>(shape_.config.top_k));
  const bool trains = !given && others == nullptr;
  const bool settled = trains && steps_ > 2 * last_steps && settle(logits, sampling.tile);
  if (given) {
    sample_tiles(logits, tokens / tile_tokens, false, sampling);
  } else if (others != nullptr) {
    train_biases(*others);
    sample_frequencies(logits, tokens, sampling);
  } else if (settled && !saturated_) {
    for (std::int64_t left = steps_before_sample(); left > 0; --left) train(logits, sampling.tile);
    set_parts(sampling);
    sample_steps(logits, sampling);
    found.shares = walked_shares(slopes_of(sampling), stream);
  } else {
    const int trained = settled ? last_steps : steps_;
    for (int left = trained; left > 0; --left) train(logits, sampling.tile);
    sample_frequencies(logits, tokens, sampling);
  }
  found.loss.residual_loss = found.loss.not_chosen = sampling.residual / sampling.examined;
  return found;
}

// The sample with the biases of now, and its shares from more tokens than it holds.
void BiasChooser::sample_frequencies(const GroupLogits& logits, std::int64_t tokens,
                                     Sampling& sampling) {
  load_.assign(bias_.size(), 0);
  sample_tiles(logits, std::max(counted_tiles, tokens / tile_tokens), false, sampling);
  const std::int64_t routes = std::accumulate(load_.begin(), load_.end(), std::int64_t{0});
  for (const std::int64_t chosen : load_) {
    sampling.found.shares.push_back(static_cast<double>(chosen) * shape_.config.top_k /
                                    static_cast<double>(routes));
  }
}

std::int64_t BiasChooser::steps_before_sample() const {
  const std::int64_t logits = tiles_per_step() * tile_tokens * shape_.experts;
  return std::clamp<std::int64_t>(first_logits / logits, first_steps, last_steps);
}

// Steps of training until the sample has all its tokens.
void BiasChooser::sample_steps(const GroupLogits& logits, Sampling& sampling) {
  while (sampling.held < sampling.found.tokens) {
    load_.assign(bias_.size(), 0);
    sample_tiles(logits, tiles_per_step(), true, sampling);
    move_biases(tiles_per_step() * tile_tokens);
  }
}

// Adds the choices of tiles to load_.
void BiasChooser::sample_tiles(const GroupLogits& logits, std::int64_t tiles, bool slope,
                               Sampling& sampling) {
  load_.resize(bias_.size(), 0);
  for (std::int64_t left = tiles; left > 0; --left) {
    const std::int64_t at = sampling.tile++;
    // GivenLogits may have a last tile that is not full: few tokens, left out.
    if (logits.fill_training_tile(at, tile_.tile()) < tile_tokens) continue;
    const bool shifts = slope && at % slope_every == 0;
    select();
    add_load(tile_tokens);
    keep_choices(sampling);
    if (at % residual_every == 0) {
      sampling.residual += residual_of_tile();
      sampling.examined += tile_tokens;
    }
    if (!shifts) continue;
    const auto part = static_cast<int>(at / slope_every % parts);
    const double higher = routes_of_subset(part, shift_of_bias);
    const auto at_part = static_cast<std::size_t>(part);
    sampling.moved[at_part] += higher - routes_of_subset(part, -shift_of_bias);
    sampling.shifted[at_part] +=
        static_cast<double>(tile_tokens * std::count(part_.begin(), part_.end(), part));
  }
}

void BiasChooser::keep_choices(Sampling& sampling) {
  LayerSample& found = sampling.found;
  if (sampling.held == found.tokens) return;
  for (std::size_t choice = 0; choice < expert_.size() / tile_tokens; ++choice) {
    std::copy_n(expert_.data() + choice * tile_tokens, tile_tokens,
                found.expert.data() + choice * found.tokens + sampling.held);
  }
  if (shape_.config.has_capacity()) keep_scores(sampling);
  sampling.held += tile_tokens;
}

// The scores of the tokens last selected, for what a capacity loses of them.
void BiasChooser::keep_scores(Sampling& sampling) {
  LayerSample& found = sampling.found;
  found.probability.resize(found.expert.size());
  found.best.resize(found.tokens);
  found.reference_mass.resize(found.tokens);
  std::vector<std::uint16_t> best_expert(expert_.size());
  std::vector<float> best(expert_.size());
  shape_.kernels.largest(score_.data(), 0, shape_.experts, shape_.config.top_k,
                         {best_expert.data(), best.data(), tile_tokens});
  std::copy_n(best.data(), tile_tokens, found.best.data() + sampling.held);
  for (std::size_t at = 0; at < expert_.size(); ++at) {
    const std::size_t token = sampling.held + at % tile_tokens;
    found.probability[at / tile_tokens * found.tokens + token] =
        score_[std::size_t{expert_[at]} * tile_tokens + at % tile_tokens];
    found.reference_mass[token] += best[at];
  }
}

// The tokens last selected have less mass than with the k best by score alone: the sum of what they
// lose.
double BiasChooser::residual_of_tile() {
  double had[tile_tokens] = {};
  for (std::size_t at = 0; at < expert_.size(); ++at) {
    const std::size_t place = at % tile_tokens;
    had[place] += static_cast<double>(score_[std::size_t{expert_[at]} * tile_tokens + place]);
  }
  shape_.kernels.largest(score_.data(), 0, shape_.experts, shape_.config.top_k,
                         {expert_.data(), key_.data(), tile_tokens});
  double best[tile_tokens] = {};
  for (std::size_t at = 0; at < key_.size(); ++at) {
    best[at % tile_tokens] += static_cast<double>(key_[at]);
  }
  double sum = 0;
  for (std::size_t place = 0; place < tile_tokens; ++place) {
    const double lost = std::max(0.0, best[place] - had[place]);
    sum += best[place] > 0 ? lost / best[place] : 0;
  }
  return sum;
}

// Parts of experts whose slopes are alike: any, or where the biases are far apart, and slopes
// differ with them, those next to each other in the order of their biases.
void BiasChooser::set_parts(Sampling& sampling) {
  sampling.moved.assign(parts, 0);
  sampling.shifted.assign(parts, 0);
  const std::size_t experts = bias_.size();
  std::vector<std::size_t> order(experts);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (far_apart_) {
    std::stable_sort(order.begin(), order.end(), [this](std::size_t one, std::size_t other) {
      return bias_[one] < bias_[other];
    });
  }
  part_.resize(experts);
  for (std::size_t place = 0; place < experts; ++place) {
    part_[order[place]] = static_cast<int>(far_apart_ ? place * parts / experts : place % parts);
  }
}

// [expert]: the change of its share with its bias.
std::vector<double> BiasChooser::slopes_of(const Sampling& sampling) const {
  // What shifted experts gain they take from all others, in part from each other.
  constexpr double own = 1 - 1.0 / parts;
  const auto slope = [](double moved, double shifted) {
    const double shift = 2.0 * static_cast<double>(shift_of_bias) * shifted * own;
    return moved / shift;
  };
  if (!far_apart_) {
    const auto sum = [](const std::vector<double>& values) {
      return std::accumulate(values.begin(), values.end(), 0.0);
    };
    return std::vector<double>(bias_.size(), slope(sum(sampling.moved), sum(sampling.shifted)));
  }
  std::vector<double> slopes;
  for (const int part : part_) {
    const auto at = static_cast<std::size_t>(part);
    slopes.push_back(std::max(0.0, slope(sampling.moved[at], sampling.shifted[at])));
  }
  return slopes;
}

// How many routes of the tile last selected go to the experts of a part when their biases are
// shifted. The part's rows of the tile keep the shift.
double BiasChooser::routes_of_subset(int part, float shift) {
  for (std::size_t expert = 0; expert < bias_.size(); ++expert) {
    if (part_[expert] != part) continue;
    const float bias = bias_[expert] + shift;
    const float* score = score_.data() + expert * tile_tokens;
    float* row = tile_.tile() + expert * tile_tokens;
    for (std::size_t place = 0; place < tile_tokens; ++place) {
      row[place] = row[place] == hopeless ? hopeless : score[place] + bias;
    }
    bias_[expert] = bias - shift;
  }
  choose_experts();
  return static_cast<double>(std::count_if(
      expert_.begin(), expert_.end(), [&](std::uint16_t expert) { return part_[expert] == part; }));
}

// Each expert's load in `last_steps` steps of training, from a bias without error.
std::vector<double> BiasChooser::walked_shares(const std::vector<double>& slopes,
                                               const StreamKey& key) const {
  const std::size_t experts = bias_.size();
  const double tokens = static_cast<double>(tiles_per_step() * tile_tokens);
  const double share = static_cast<double>(shape_.config.top_k) / shape_.experts;
  const double noise = std::sqrt(tokens * share * (1 - share));
  const std::vector<float> zeros(experts, 0.0F);
  std::vector<float> normal(experts * tile_tokens);
  std::vector<double> error(experts, 0.0);
  // A load is a whole number: it is above the mean from half below the next one on, and below it
  // until half above the one before.
  const double even = tokens * share;
  const double above = std::floor(even) + 0.5;
  const double below = std::ceil(even) - 0.5;
  for (std::uint64_t step = 0; step < last_steps; step += tile_tokens) {
    shape_.kernels.gaussian({philox_words(key), step}, shape_.experts, zeros.data(), normal.data());
    for (std::size_t expert = 0; expert < experts; ++expert) {
      for (std::size_t lane = 0; lane < tile_tokens; ++lane) {
        const double mean = tokens * (share + slopes[expert] * error[expert]);
        const double load = mean + noise * static_cast<double>(normal[expert * tile_tokens + lane]);
        const double step_of_error = load >= above ? -speed_ : load < below ? speed_ : 0.0;
        error[expert] += step_of_error;
      }
    }
  }
  std::vector<double> shares;
  for (std::size_t expert = 0; expert < experts; ++expert) {
    shares.push_back(std::clamp(share + slopes[expert] * error[expert], 0.0, 1.0));
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& of_expert : shares) of_expert *= shape_.config.top_k / sum;
  return shares;
}

}  // namespace moesim::routing
