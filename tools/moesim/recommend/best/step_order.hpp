#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/study/search/training_search.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "tools/moesim/recommend/request/recommend_request.hpp"

namespace moesim::tool {

// How far off the predicted ratio of two steps is.
struct StepRatios {
  uncertainty::Band band;       // of log(measured / predicted ratio)
  std::string known_by;         // "17 groups of pairs"
  bool has_unmeasured = false;  // wider by what one of them has and no measured step
};
// With a document of one's own software by what its fit leaves open, else by published pairs of
// steps that differ as much. Of two that differ in router and capacity alone, padded to it, by such
// pairs, but where one's own steps say more. Wider by what computing may hide of exchanges of
// weights and gradients in one and not in the other (uncertainty::widen_by_hidden()).
StepRatios step_ratios(const RecommendRequest& request, const study::FoundStep& one,
                       const study::FoundStep& other);

// The chance that `other` is slower than `one`, at least: 0.75, 0.9 or 0.95; 0: less, within the
// noise.
double surely_slower(const RecommendRequest& request, const study::FoundStep& one,
                     const study::FoundStep& other);

// How sure it is that the first of these steps, fastest first, is faster than each of the others:
// by step_ratios(), of which those known least are told, of each kind.
std::string order_text(const RecommendRequest& request, const std::vector<study::FoundStep>& best);

// How far below the first of the best a speed may be predicted while half of such ratios are within
// the noise: of the one whose ratio to it is known least.
struct OrderNoise {
  std::optional<double> of_capacity;  // of those that differ from it in router and capacity alone
  // For the others of the best, or of the front where there are none; where the first is alone, for
  // two steps that differ as usual.
  std::optional<double> of_others;
};
OrderNoise order_noise(const RecommendRequest& request, const study::TrainingFound& found);

}  // namespace moesim::tool
