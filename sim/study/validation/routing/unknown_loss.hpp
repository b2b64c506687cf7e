#pragma once

#include <string>
#include <vector>

#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// The token loss of the recorded MoE layers of one population of trainings.
struct RecordedLayers {
  std::string name;  // "OLMoE"
  int experts = 0;
  int top_k = 0;
  bool balance_loss = true;  // which of the populations of unknown_popularity.hpp it gave
  // [layer][place in unknown_loss_factors]: lost of all routes, 0..1
  std::vector<std::vector<double>> lost;
};

// Library capacity factors, in hundredths.
inline constexpr int unknown_loss_factors[] = {100, 125};

// Adds, for each of `recorded` and each factor, how many layers lose what lies inside the 50, 80
// and 90 % bands of `--routing unknown`: with the population that these very layers gave, and with
// the other one, which knows nothing of them. Beside it the mean width, the error of the median of
// the band and that of the default gaussian:0.1. Reported only: a bar asks for more populations.
void report_unknown_loss(const std::vector<RecordedLayers>& recorded, Validation& validation);

}  // namespace moesim::study
