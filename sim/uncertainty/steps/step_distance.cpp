#include "sim/uncertainty/steps/step_distance.hpp"

#include <cmath>
#include <numeric>

namespace moesim::uncertainty {
namespace {

constexpr double floor_distance = 0.5;

}  // namespace

std::vector<double> part_times(const training::TrainingStep& step) {
  const double token_us = 1e6 / step.tokens_per_second_per_gpu;
  std::vector<double> times;
  for (const double part_us : step.parts) times.push_back(part_us / step.step_us * token_us);
  return times;
}

double part_share(const training::TrainingStep& step,
                  const std::vector<training::TrainingPart>& parts) {
  double sum = 0;
  for (const training::TrainingPart part : parts) sum += step.parts[at(part)];
  return sum / step.step_us;
}

double step_distance(const std::vector<double>& one, const std::vector<double>& other) {
  double apart = 0;
  for (std::size_t part = 0; part < one.size(); ++part) apart += std::abs(one[part] - other[part]);
  const double both = std::accumulate(one.begin(), one.end(), 0.0) +
                      std::accumulate(other.begin(), other.end(), 0.0);
  return 2 * apart / both;
}

double share_distance(const std::vector<double>& one, const std::vector<double>& other) {
  const auto shares = [](std::vector<double> parts) {
    const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
    for (double& part : parts) part /= sum;
    return parts;
  };
  return step_distance(shares(one), shares(other));
}

double distance_reach(double distance) {
  return std::hypot(floor_distance, distance) / std::hypot(floor_distance, usual_distance);
}

}  // namespace moesim::uncertainty
