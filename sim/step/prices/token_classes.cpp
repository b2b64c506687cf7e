#include "sim/step/prices/token_classes.hpp"

#include <algorithm>

namespace moesim::step {

TokenClasses::TokenClasses(const scenario::Scenario& scenario) : tokens_{scenario.tokens_per_gpu} {
  if (!scenario.is_ragged()) return;
  for (int gpu = 0; gpu < scenario.gpus; ++gpu) {
    const std::int64_t tokens = scenario.tokens_of(gpu);
    const auto found = std::find(tokens_.begin(), tokens_.end(), tokens);
    class_of_.push_back(static_cast<TokenClass>(found - tokens_.begin()));
    if (found == tokens_.end()) tokens_.push_back(tokens);
  }
}

}  // namespace moesim::step
