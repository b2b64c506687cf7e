#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace moesim::study {

// The fastest step on so many GPUs.
struct ScalingPoint {
  int gpus = 1;
  double tokens_per_s = 0;  // of all of them
};

// What a number of GPUs comes to, beside the others.
struct ScalingFigures {
  double efficiency = 1;  // tokens per second and GPU over those of the fewest GPUs
  // Tokens per second that each GPU added to the last number that pays brings, over those of a GPU
  // at the most efficient number up to there; nothing for the fewest.
  std::optional<double> gain;
  bool pays = true;
  std::size_t last = 0;     // the place of that last number; its own of the fewest
  double best_per_gpu = 0;  // of the most efficient number up to there
};

// A number of GPUs pays if each added GPU brings at least this share of a GPU at the most efficient
// number: then no token costs more than twice the GPU hours of the cheapest.
inline constexpr double least_gain = 0.5;

// ScalingFigures::gain from `last` to `point`.
double added_gpu_gain(const ScalingPoint& last, const ScalingPoint& point, double best_per_gpu);

// By GPUs, fewest first; the fewest always pay. A number that does not pay is passed over: the next
// one is compared with the last that does. Precondition: different numbers of GPUs, in order, and
// positive speeds.
std::vector<ScalingFigures> scaling_of(const std::vector<ScalingPoint>& points,
                                       double least = least_gain);

// The largest number of GPUs that pays.
int pays_up_to(const std::vector<ScalingPoint>& points, double least = least_gain);

}  // namespace moesim::study
