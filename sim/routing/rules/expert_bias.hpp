#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/routing/rules/expert_placement.hpp"

namespace moesim::routing {

struct ScoreSource;  // scores/score_source.hpp

// A number per expert that is added to scores for the choice alone, as checkpoints have it
// (e_score_correction_bias of DeepSeek-V3, Kimi K2 and GLM).
class ExpertBias {
 public:
  // Reads a .npy of float32, [experts] or [layers, experts]; one row serves all layers. Throws
  // UsageError naming the file for another shape and for values that are not finite.
  static ExpertBias load(const std::string& path);
  // 0 for each expert of all layers: of a router whose biases are not trained.
  static ExpertBias zeros(int experts);
  // No numbers yet: a router that trains its biases trains them on `scores`, whatever it routes.
  // `digest`: equal for equal scores.
  static ExpertBias trained(const std::string& name, std::shared_ptr<const ScoreSource> scores,
                            std::uint64_t digest, int experts);

  // Null where the numbers are given.
  const std::shared_ptr<const ScoreSource>& trained_on() const { return trained_on_; }
  const std::string& name() const { return name_; }
  int experts() const { return static_cast<int>(layers_.front().size()); }
  int layers() const { return static_cast<int>(layers_.size()); }
  std::vector<float> of_layer(std::uint32_t layer) const;
  // The same in the order of the positions of a placement of as many experts.
  ExpertBias placed(std::shared_ptr<const ExpertPlacement> placement) const;
  std::uint64_t digest() const;

 private:
  std::string name_;
  std::vector<std::vector<float>> layers_;            // by the numbers of the experts
  std::shared_ptr<const ExpertPlacement> placement_;  // null: their order
  std::shared_ptr<const ScoreSource> trained_on_;
  std::uint64_t digest_of_scores_ = 0;
};

}  // namespace moesim::routing
