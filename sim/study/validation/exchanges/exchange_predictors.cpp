#include "sim/study/validation/exchanges/exchange_predictors.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace moesim::study {
namespace {

using profile::SizeCurve;

constexpr double rise_per_octave = 0.98;
constexpr int rising_octaves = 4;
constexpr double shrink = 0.5;     // of the ratio between two machines
constexpr double smoothing = 2.0;  // octaves, standard deviation of a Gaussian
constexpr int reach = 4;

// The smallest size of `curve` and its doubles up to `largest`.
std::vector<double> octaves(double smallest, double largest) {
  std::vector<double> sizes = {smallest};
  while (2 * sizes.back() <= largest * (1 + 1e-9)) sizes.push_back(2 * sizes.back());
  return sizes;
}

double mean_log(const std::vector<Run>& runs, int gpus, double size) {
  double sum = 0;
  int count = 0;
  for (const Run& run : runs) {
    const auto found = run.find(gpus);
    if (found == run.end()) continue;
    sum += std::log(found->second.time_us(size));
    ++count;
  }
  return sum / count;
}

std::vector<double> smoothed(const std::vector<double>& values) {
  const int last = static_cast<int>(values.size()) - 1;
  std::vector<double> result;
  for (int place = 0; place <= last; ++place) {
    double sum = 0;
    double weights = 0;
    for (int away = -reach; away <= reach; ++away) {
      const double weight = std::exp(-0.5 * away * away / (smoothing * smoothing));
      sum += weight * values[static_cast<std::size_t>(std::clamp(place + away, 0, last))];
      weights += weight;
    }
    result.push_back(sum / weights);
  }
  return result;
}

bool all_have(const std::vector<Run>& runs, int gpus) {
  return std::all_of(runs.begin(), runs.end(),
                     [gpus](const Run& run) { return run.count(gpus) != 0; });
}

std::vector<Run> having(const std::vector<Run>& runs, int gpus) {
  std::vector<Run> found;
  std::copy_if(runs.begin(), runs.end(), std::back_inserter(found),
               [gpus](const Run& run) { return run.count(gpus) != 0; });
  return found;
}

}  // namespace

SizeCurve with_tail(const SizeCurve& curve, double largest) {
  double size = curve.largest();
  const double slope = (curve.time_us(size) - curve.time_us(size / 2)) / (size / 2);
  std::vector<double> sizes;
  std::vector<double> times;
  for (const double each : octaves(curve.smallest(), size)) {
    sizes.push_back(each);
    times.push_back(curve.time_us(each));
  }
  for (int octave = 1; size < largest * (1 - 1e-9); ++octave) {
    const double next = std::min(2 * size, largest);
    const double step = slope * std::pow(rise_per_octave, std::min(octave, rising_octaves));
    times.push_back(times.back() + (next - size) * step);
    sizes.push_back(next);
    size = next;
  }
  return {sizes, times};
}

SizeCurve from_sibling(const std::vector<Run>& own, const std::vector<Run>& donors, int gpus) {
  const std::vector<Run> lent = having(donors, gpus);
  const SizeCurve& model = lent.front().at(gpus);
  const std::vector<double> sizes = octaves(model.smallest(), model.largest());
  std::vector<double> ratio(sizes.size());
  int counts = 0;
  for (const auto& [few, curve] : own.front()) {
    if (few >= gpus || !all_have(own, few) || !all_have(lent, few)) continue;
    for (std::size_t knot = 0; knot < sizes.size(); ++knot) {
      ratio[knot] += mean_log(own, few, sizes[knot]) - mean_log(lent, few, sizes[knot]);
    }
    ++counts;
  }
  for (double& each : ratio) each /= std::max(counts, 1);
  ratio = smoothed(ratio);
  std::vector<double> times;
  for (std::size_t knot = 0; knot < sizes.size(); ++knot) {
    const double time = std::exp(mean_log(lent, gpus, sizes[knot]) + shrink * ratio[knot]);
    times.push_back(times.empty() ? time : std::max(time, times.back()));
  }
  return {sizes, times};
}

}  // namespace moesim::study
