#include "sim/routing/groups/variant_router.hpp"

#include <algorithm>
#include <limits>

#include "sim/base/random.hpp"
#include "sim/routing/groups/chooser.hpp"
#include "sim/routing/groups/tile_chooser.hpp"
#include "sim/routing/rules/expert_bias.hpp"

namespace moesim::routing {

namespace {

constexpr float lowest = std::numeric_limits<float>::lowest();
constexpr float infinite = std::numeric_limits<float>::infinity();

class VariantChooser final : public Chooser {
 public:
  explicit VariantChooser(const KindShape& shape)
      : shape_(shape),
        tile_(shape.experts, shape.kernels),
        bias_(static_cast<std::size_t>(shape.experts), 0.0F),
        no_offsets_(bias_),
        score_(bias_.size() * tile_tokens),
        key_(score_.size()),
        best_(static_cast<std::size_t>(shape.config.top_k) * tile_tokens),
        best_expert_(best_.size()) {}

  KeepingRules rules(const RouterContext& /*context*/) const override {
    return {shape_.config, shape_.experts};
  }

  void start_layer(const GroupLogits& /*logits*/, const RouterContext& context) override {
    if (shape_.config.expert_bias) bias_ = shape_.config.expert_bias->of_layer(context.layer);
  }

  void choose(const GroupLogits& logits, const RouterContext& context, Choices& out) override {
    out.reference_mass.resize(static_cast<std::size_t>(logits.all_tokens()) + tile_tokens);
    float* mass = out.reference_mass.data();
    for (int rank = 0; rank < logits.ranks(); ++rank) {
      const LocalExperts local =
          local_experts(shape_.config, shape_.experts, shape_.ranks, rank, context.place);
      const StreamKey stream{context.seed, Purpose::second_expert, context.replica, context.layer,
                             static_cast<std::uint32_t>(context.place.first_gpu + rank)};
      out.table.append_chosen(logits.tokens(rank), [&](std::int64_t token, const ChoiceOutput& to) {
        logits.fill_tile(rank, token, tile_.tile());
        find_scores();
        take_best(shape_.config.choices(), to);
        if (shape_.config.second_expert == SecondExpert::sampled) {
          sample_second({philox_words(stream), static_cast<std::uint64_t>(token)}, to);
        }
        add_best_mass(mass + token);
        if (shape_.config.expert_bias && shape_.config.has_capacity()) {
          std::copy_n(best_.data(), tile_tokens, out.table.best_output(token));
        }
        if (local.wanted > 0) take_local(local, out.table.local_output(token));
      });
      out.table.set_local_places(local.wanted);
      mass += logits.tokens(rank);
    }
  }

 private:
  // score_: g; key_: what experts are chosen by. Experts with logit -inf come last.
  void find_scores() {
    const float* logit = tile_.tile();
    const bool biased = shape_.config.expert_bias != nullptr;
    std::copy_n(logit, score_.size(), key_.data());
    if (shape_.config.score_function == ScoreFunction::sigmoid) {
      shape_.kernels.biased_sigmoids(key_.data(), shape_.experts, bias_.data(), score_.data());
      return;
    }
    std::copy_n(logit, score_.size(), score_.data());
    tile_.find_softmax();
    tile_.to_probabilities(shape_.experts, {nullptr, score_.data(), tile_tokens});
    // Without a bias by logit: different logits may have the same g.
    for (std::size_t at = 0; biased && at < key_.size(); ++at) {
      key_[at] = logit[at] == -infinite ? lowest : score_[at] + bias_[at / tile_tokens];
    }
  }

  void take_best(int choices, const ChoiceOutput& to) {
    shape_.kernels.largest(key_.data(), 0, shape_.experts, choices, to);
    to_scores(static_cast<std::size_t>(choices), to);
  }

  void to_scores(std::size_t choices, const ChoiceOutput& to) const {
    for (std::size_t choice = 0; choice < choices; ++choice) {
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        const std::size_t at = choice * to.stride + place;
        to.probability[at] = score_[std::size_t{to.expert[at]} * tile_tokens + place];
      }
    }
  }

  // key_ = logit + noise; the first choice last.
  void sample_second(const NoiseKey& noise, const ChoiceOutput& to) {
    shape_.kernels.gumbel(noise, shape_.experts, no_offsets_.data(), key_.data());
    for (std::size_t at = 0; at < key_.size(); ++at) {
      key_[at] = std::max(key_[at] + tile_.tile()[at], lowest);
    }
    for (std::size_t place = 0; place < tile_tokens; ++place) {
      key_[std::size_t{to.expert[place]} * tile_tokens + place] = -infinite;
    }
    const ChoiceOutput second{to.expert + to.stride, to.probability + to.stride, to.stride};
    take_best(1, second);
  }

  void add_best_mass(float* mass) {
    shape_.kernels.largest(score_.data(), 0, shape_.experts, shape_.config.top_k,
                           {best_expert_.data(), best_.data(), tile_tokens});
    std::copy_n(best_.data(), tile_tokens, mass);
    for (std::size_t at = tile_tokens; at < best_.size(); ++at) mass[at % tile_tokens] += best_[at];
  }

  // Chooses by logit: different logits may have the same g.
  void take_local(const LocalExperts& local, const ChoiceOutput& to) {
    shape_.kernels.largest(tile_.tile(), local.first, local.last, local.wanted, to);
    to_scores(static_cast<std::size_t>(local.wanted), to);
  }

  KindShape shape_;
  TileChooser tile_;
  std::vector<float> bias_, no_offsets_;  // [expert]
  std::vector<float> score_, key_;        // [expert, 16]
  std::vector<float> best_;               // [k, 16]: the best scores
  std::vector<std::uint16_t> best_expert_;
};

}  // namespace

std::unique_ptr<KindRouter> make_variant_router(const KindShape& shape) {
  return make_chosen_router(shape, make_variant_chooser(shape));
}

std::unique_ptr<Chooser> make_variant_chooser(const KindShape& shape) {
  return std::make_unique<VariantChooser>(shape);
}

}  // namespace moesim::routing
