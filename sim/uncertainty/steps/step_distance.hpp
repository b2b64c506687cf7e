#pragma once

#include <vector>

#include "sim/training/step/training_step.hpp"

namespace moesim::uncertainty {

// The time of each part of a step for a token of a GPU, in microseconds.
std::vector<double> part_times(const training::TrainingStep& step);

// The share of a step that these parts take.
double part_share(const training::TrainingStep& step,
                  const std::vector<training::TrainingPart>& parts);

// How different two steps of one model are: the time of parts that the one has and the other has
// not, over their mean. 0: the same parts in the same time; 1: either does half of other work, or
// one takes three times as long; at most 2. Both must have the same parts, and a positive sum.
double step_distance(const std::vector<double>& one, const std::vector<double>& other);

// The same of steps on two machines, of which the one may be faster in all parts alike: of their
// shares of a step.
double share_distance(const std::vector<double>& one, const std::vector<double>& other);

// The distance of steps of which nothing but the speed is known: few published pairs are farther
// apart.
inline constexpr double far_apart = 1.2;

inline constexpr double usual_distance = 0.45;  // the median of published pairs of one model

// How far off the predicted ratio of two steps at a distance is, over those at the usual one:
// sqrt((0.5^2 + d^2) / (0.5^2 + 0.45^2)). Fitted to published pairs of one model (README.md).
double distance_reach(double distance);

}  // namespace moesim::uncertainty
