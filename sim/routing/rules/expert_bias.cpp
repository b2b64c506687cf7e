#include "sim/routing/rules/expert_bias.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "sim/base/digest.hpp"
#include "sim/base/error.hpp"
#include "sim/base/formats/npy.hpp"

namespace moesim::routing {

ExpertBias ExpertBias::load(const std::string& path) {
  const NpyArray array = NpyArray::load(path);
  const std::size_t axes = array.shape.size();
  if (axes < 1 || axes > 2 || array.shape.back() < 1 || array.shape.front() < 1) {
    throw UsageError(
        fmt::format("{}: shape {}: a bias per expert is [experts] or [layers, experts]", array.name,
                    array.shape_text()));
  }
  const std::vector<float> values = array.float32();
  const auto experts = static_cast<std::size_t>(array.shape.back());
  ExpertBias bias;
  bias.name_ = path;
  for (std::size_t begin = 0; begin < values.size(); begin += experts) {
    for (std::size_t expert = 0; expert < experts; ++expert) {
      if (std::isfinite(values[begin + expert])) continue;
      throw UsageError(fmt::format("{}: layer {}, expert {}: the bias is {}, not finite",
                                   array.name, begin / experts, expert, values[begin + expert]));
    }
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
    bias.layers_.emplace_back(first, first + static_cast<std::ptrdiff_t>(experts));
  }
  return bias;
}

ExpertBias ExpertBias::zeros(int experts) {
  ExpertBias bias;
  bias.name_ = "zeros";
  bias.layers_.emplace_back(static_cast<std::size_t>(experts), 0.0F);
  return bias;
}

ExpertBias ExpertBias::trained(const std::string& name, std::shared_ptr<const ScoreSource> scores,
                               std::uint64_t digest, int experts) {
  ExpertBias bias = zeros(experts);
  bias.name_ = name;
  bias.trained_on_ = std::move(scores);
  bias.digest_of_scores_ = digest;
  return bias;
}

std::vector<float> ExpertBias::of_layer(std::uint32_t layer) const {
  std::vector<float> values = layers_.size() == 1 ? layers_.front() : layers_.at(layer);
  if (placement_) put_in_placement(placement_->expert_at(static_cast<int>(layer)), values);
  return values;
}

ExpertBias ExpertBias::placed(std::shared_ptr<const ExpertPlacement> placement) const {
  ExpertBias bias = *this;
  bias.placement_ = std::move(placement);
  return bias;
}

std::uint64_t ExpertBias::digest() const {
  Digest digest;
  for (const std::vector<float>& layer : layers_) digest.add(std::span<const float>(layer));
  if (trained_on_) digest.add(std::span<const std::uint64_t>(&digest_of_scores_, 1));
  return digest.value();
}

}  // namespace moesim::routing
