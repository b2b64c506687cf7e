#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace moesim::routing {

// A number per expert that is added to scores for the choice alone, as checkpoints have it
// (e_score_correction_bias of DeepSeek-V3, Kimi K2 and GLM).
class ExpertBias {
 public:
  // From a .npy of float32, [experts] or [layers, experts]; one row serves all layers. Throws
  // UsageError naming the file for another shape and for values that are not finite.
  static ExpertBias load(const std::string& path);

  const std::string& name() const { return name_; }
  int experts() const { return static_cast<int>(layers_.front().size()); }
  int layers() const { return static_cast<int>(layers_.size()); }
  const std::vector<float>& of_layer(std::uint32_t layer) const {
    return layers_.size() == 1 ? layers_.front() : layers_.at(layer);
  }
  std::uint64_t digest() const;

 private:
  std::string name_;
  std::vector<std::vector<float>> layers_;
};

}  // namespace moesim::routing
