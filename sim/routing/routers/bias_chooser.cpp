// Counts of the bias-balanced router: see BiasChooser::sample.
#include "sim/routing/routers/bias_chooser.hpp"

#include <cmath>
#include <numeric>

namespace moesim::routing {

namespace {

// For groups: settle() knows nothing of them.
constexpr int pilot_steps = 24;
constexpr std::int64_t sampled_tiles = 512;
// Where shares are frequencies: 1 % of a share of 1/32.
constexpr std::int64_t counted_tiles = 16384;
// The slope: one expert in 8 gets a bias that is higher, then lower by this much.
constexpr int parts = 8;
constexpr float shift_of_bias = 0.01F;

}  // namespace

LayerShares BiasChooser::sample(const GroupLogits& logits, const StreamKey& key) {
  bias_.assign(static_cast<std::size_t>(shape_.experts), 0.0F);
  std::int64_t tile = 0;
  const bool settled = steps_ > 2 * last_steps && settle(logits, tile);
  for (int left = settled ? pilot_steps : steps_; left > 0; --left) train(logits, tile);
  const Sample sample = take_sample(logits, tile, settled ? sampled_tiles : counted_tiles, settled);
  LayerShares found;
  if (settled) {
    found.shares = walked_shares(sample.slope, key);
  } else {
    for (const double chosen : sample.chosen) found.shares.push_back(chosen / sample.tokens);
  }
  found.loss.residual_loss = sample.residual / sample.tokens;
  return found;
}

// Tiles [tile, tile + tiles) of training.
BiasChooser::Sample BiasChooser::take_sample(const GroupLogits& logits, std::int64_t tile,
                                             std::int64_t tiles, bool slope) {
  Sample sample;
  sample.chosen.assign(bias_.size(), 0.0);
  std::vector<float> drawn;
  double moved = 0;  // routes of a higher bias less those of a lower one
  double shifted = 0;
  for (std::int64_t at = 0; at < tiles; ++at) {
    const int valid = logits.fill_training_tile(tile + at, tile_.tile());
    // GivenLogits may have a last tile that is not full: few tokens, left out.
    if (valid < tile_tokens) continue;
    if (slope) drawn.assign(tile_.tile(), tile_.tile() + bias_.size() * tile_tokens);
    select();
    for (const std::uint16_t expert : expert_) ++sample.chosen[expert];
    sample.tokens += tile_tokens;
    add_residual(sample);
    if (!slope) continue;
    const auto part = static_cast<int>(at % parts);
    moved += routes_of_subset(part, shift_of_bias, drawn) -
             routes_of_subset(part, -shift_of_bias, drawn);
    shifted += tile_tokens * std::ceil(static_cast<double>(shape_.experts - part) / parts);
  }
  // What shifted experts gain they take from all others, in part from each other.
  constexpr double own = 1 - 1.0 / parts;
  if (slope) sample.slope = moved / (2.0 * static_cast<double>(shift_of_bias) * shifted * own);
  return sample;
}

// The tokens last selected have less mass than with the k best by score alone.
void BiasChooser::add_residual(Sample& sample) {
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
  for (std::size_t place = 0; place < tile_tokens; ++place) {
    const double lost = std::max(0.0, best[place] - had[place]);
    sample.residual += best[place] > 0 ? lost / best[place] : 0;
  }
}

// How many routes of the tile with these logits go to the experts of a part when their biases are
// shifted.
double BiasChooser::routes_of_subset(int part, float shift, const std::vector<float>& logits) {
  const auto shift_all = [&](float by) {
    for (std::size_t expert = static_cast<std::size_t>(part); expert < bias_.size();
         expert += parts) {
      bias_[expert] += by;
    }
  };
  shift_all(shift);
  std::copy(logits.begin(), logits.end(), tile_.tile());
  select();
  shift_all(-shift);
  return static_cast<double>(
      std::count_if(expert_.begin(), expert_.end(),
                    [part](std::uint16_t expert) { return expert % parts == part; }));
}

// Each expert's load in `last_steps` steps of training, from a bias without error.
std::vector<double> BiasChooser::walked_shares(double slope, const StreamKey& key) const {
  const std::size_t experts = bias_.size();
  const double tokens = static_cast<double>(tiles_per_step() * tile_tokens);
  const double share = static_cast<double>(shape_.config.top_k) / shape_.experts;
  const double noise = std::sqrt(tokens * share * (1 - share));
  const std::vector<float> zeros(experts, 0.0F);
  std::vector<float> normal(experts * tile_tokens);
  std::vector<double> error(experts, 0.0);
  for (std::uint64_t step = 0; step < last_steps; step += tile_tokens) {
    shape_.kernels.gaussian({philox_words(key), step}, shape_.experts, zeros.data(), normal.data());
    for (std::size_t expert = 0; expert < experts; ++expert) {
      for (std::size_t lane = 0; lane < tile_tokens; ++lane) {
        const double mean = tokens * (share + slope * error[expert]);
        const double load =
            std::round(mean + noise * static_cast<double>(normal[expert * tile_tokens + lane]));
        const double above = load - tokens * share;
        if (above != 0) error[expert] += above > 0 ? -speed_ : speed_;
      }
    }
  }
  std::vector<double> shares;
  for (const double off : error) shares.push_back(std::clamp(share + slope * off, 0.0, 1.0));
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& of_expert : shares) of_expert *= shape_.config.top_k / sum;
  return shares;
}

}  // namespace moesim::routing
