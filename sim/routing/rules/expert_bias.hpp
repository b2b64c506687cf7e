#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/routing/rules/expert_placement.hpp"

namespace moesim::routing {

// A number per expert that is added to scores for the choice alone, as checkpoints have it
// (e_score_correction_bias of DeepSeek-V3, Kimi K2 and GLM).
class ExpertBias {
 public:
  // Reads a .npy of float32, [experts] or [layers, experts]; one row serves all layers. Throws
  // UsageError naming the file for another shape and for values that are not finite.
  static ExpertBias load(const std::string& path);
  // 0 for each expert of all layers: of a router whose biases are not trained.
  static ExpertBias zeros(int experts);

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
};

}  // namespace moesim::routing
