#include "sim/routing/groups/layer_sampler.hpp"

#include <algorithm>
#include <memory>

#include "sim/routing/groups/chooser.hpp"
#include "sim/routing/groups/variant_router.hpp"
#include "sim/routing/tokens/choice_table.hpp"

namespace moesim::routing {

namespace {

// Training tokens as those of a single rank.
class TrainingTokens final : public GroupLogits {
 public:
  TrainingTokens(const GroupLogits& source, std::int64_t tokens)
      : source_(source), tokens_(tokens) {}

  int experts() const override { return source_.experts(); }
  int ranks() const override { return 1; }
  std::int64_t tokens(int /*rank*/) const override { return tokens_; }
  void fill_tile(int /*rank*/, std::int64_t first_token, float* tile) const override {
    source_.fill_training_tile(first_token / tile_tokens, tile);
  }
  int fill_training_tile(std::int64_t index, float* tile) const override {
    return source_.fill_training_tile(index + tokens_ / tile_tokens, tile);
  }

 private:
  const GroupLogits& source_;
  std::int64_t tokens_;
};

double mean_residual(const ChoiceTable& table, const std::vector<float>& reference_mass) {
  if (reference_mass.empty()) return 0;
  double sum = 0;
  for (std::size_t token = 0; token < static_cast<std::size_t>(table.tokens()); ++token) {
    double mass = 0;
    for (int choice = 0; choice < table.choices(); ++choice) {
      mass += static_cast<double>(table.probability(choice)[token]);
    }
    const auto best = static_cast<double>(reference_mass[token]);
    if (best > 0) sum += std::max(0.0, 1 - mass / best);
  }
  return sum / static_cast<double>(table.tokens());
}

std::unique_ptr<Chooser> make_chooser(const KindShape& shape) {
  const RouterDescriptor& kind = *shape.config.kind;
  if (kind.takes_best && shape.config.varies()) return make_variant_chooser(shape);
  return kind.make_chooser == nullptr ? nullptr : kind.make_chooser(shape);
}

}  // namespace

LayerSample sample_layer(const KindShape& shape, const GroupLogits& logits, const StreamKey& stream,
                         std::int64_t tokens) {
  RouterConfig config = shape.config;  // the primary choices alone
  config.fill_in = false;
  config.rectification = Rectification::none;
  const KindShape plain{config, shape.experts, shape.ranks, shape.kernels};
  if (config.kind->sample != nullptr) return config.kind->sample(plain, logits, stream, tokens);
  const TrainingTokens training(logits, tokens);
  ChoiceTable table;
  std::vector<float> reference_mass;
  const std::unique_ptr<Chooser> chooser = make_chooser(plain);
  table.reset(shape.experts, config.top_k, 1, 0, tokens);
  if (chooser == nullptr) {
    table.append_tiles(tokens, 0, {}, plain.kernels, [&](std::int64_t token, float* tile) {
      training.fill_tile(0, token, tile);
    });
  } else {
    RouterContext context{{0, 0}, stream.seed, stream.replica, stream.layer};
    Choices choices{table, reference_mass};
    chooser->start_layer(training, context);
    chooser->choose(training, context, choices);
  }
  LayerSample sample;
  sample.tokens = static_cast<std::size_t>(tokens);
  for (int choice = 0; choice < config.top_k; ++choice) {
    const std::uint16_t* expert = table.expert(choice);
    sample.expert.insert(sample.expert.end(), expert, expert + tokens);
  }
  sample.loss.residual_loss = sample.loss.not_chosen = mean_residual(table, reference_mass);
  if (!config.has_capacity() || reference_mass.empty()) return sample;
  for (int choice = 0; choice < config.top_k; ++choice) {
    const float* probability = table.probability(choice);
    sample.probability.insert(sample.probability.end(), probability, probability + tokens);
  }
  sample.best.assign(table.max_probability(), table.max_probability() + tokens);
  sample.reference_mass.assign(reference_mass.begin(), reference_mass.begin() + tokens);
  return sample;
}

}  // namespace moesim::routing
