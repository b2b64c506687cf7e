#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace moesim::routing {

// Offsets of logits that load experts in proportion to `counts`, the largest 0: with a standard
// normal added to each, the `top_k` largest of a token are its choices. The probability of being
// chosen is within 2e-5 of top_k times the expert's share, limited to 0.999. Experts without a
// count have -inf; of at most `top_k` with one, all are alike.
std::vector<double> counted_offsets(std::span<const double> counts, int top_k);

// How popular experts are by counts of them.
class CountedPopularity {
 public:
  using Layers = std::vector<std::vector<double>>;  // [layer][expert]

  // Shares of each layer, which sum to 1; at least one layer, all of as many experts.
  explicit CountedPopularity(Layers layers) : layers_(std::move(layers)) {}

  const Layers& layers() const { return layers_; }
  int experts() const { return static_cast<int>(layers_.front().size()); }

  // counted_offsets() of a layer, of which those beyond the last start again from the first.
  // Computed once for each layer and `top_k`; from any thread.
  const std::vector<double>& offsets(std::uint32_t layer, int top_k) const;

 private:
  Layers layers_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<std::size_t, int>, std::vector<double>> offsets_;
};

}  // namespace moesim::routing
