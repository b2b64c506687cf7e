#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace moesim::routing {

// Log-weights of draws that load experts in proportion to `counts`: exact for one choice per token,
// else within 1e-4 (race.hpp). Experts without a count have -inf; of at most `top_k` with one, all
// are alike.
std::vector<double> counted_log_weights(std::span<const double> counts, int top_k);

// How popular experts are by counts of them.
class CountedPopularity {
 public:
  using Layers = std::vector<std::vector<double>>;  // [layer][expert]

  // Shares of each layer, which sum to 1; at least one layer, all of as many experts.
  explicit CountedPopularity(Layers layers) : layers_(std::move(layers)) {}

  const Layers& layers() const { return layers_; }
  int experts() const { return static_cast<int>(layers_.front().size()); }

  // counted_log_weights() of a layer, of which those beyond the last start again from the first.
  // Computed once for each layer and `top_k`; from any thread.
  const std::vector<double>& log_weights(std::uint32_t layer, int top_k) const;

 private:
  Layers layers_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<std::size_t, int>, std::vector<double>> weights_;
};

}  // namespace moesim::routing
