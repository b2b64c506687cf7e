#include "sim/routing/simulation/busiest_load.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

namespace moesim::routing {
namespace {

// How probable it is that noise exceeds -x: a table with lines between its places, off by 2e-6 at
// most.
class Chance {
 public:
  explicit Chance(Noise noise) {
    constexpr int last = static_cast<int>((highest - lowest) * steps) + 1;
    for (int place = 0; place <= last; ++place) {
      values_.push_back(exact(noise, lowest + place / steps));
    }
  }

  struct Value {
    double chance, slope;
  };
  Value at(double x) const {
    const double place = (std::clamp(x, lowest, highest) - lowest) * steps;
    const auto below = static_cast<std::size_t>(place);
    const double rise = values_[below + 1] - values_[below];
    return {values_[below] + rise * (place - static_cast<double>(below)), rise * steps};
  }

 private:
  static constexpr double lowest = -20;
  static constexpr double highest = 10;
  static constexpr double steps = 128;

  static double exact(Noise noise, double x) {
    return noise == Noise::normal ? std::erfc(-x / std::numbers::sqrt2) / 2
                                  : -std::expm1(-std::exp(x));
  }

  std::vector<double> values_;
};

const Chance& chance_of(Noise noise) {
  static const Chance normal(Noise::normal);
  static const Chance gumbel(Noise::gumbel);
  return noise == Noise::normal ? normal : gumbel;
}

// Where k experts are expected above it: Newton's method on the log of their number, or halving
// where that would leave the interval that has it.
double threshold_of(std::span<const float> offsets, const Chance& chance, int k) {
  constexpr double far = 20;
  constexpr int most_rounds = 100;
  const double top = *std::max_element(offsets.begin(), offsets.end());
  double low = top;
  for (const float offset : offsets) {
    if (std::isfinite(offset)) low = std::min(low, double{offset});
  }
  low -= far;
  double high = top + far;
  double threshold = top;
  for (int round = 0; round < most_rounds; ++round) {
    double above = 0;
    double slope = 0;
    for (const float offset : offsets) {
      const auto [probability, rise] = chance.at(offset - threshold);
      above += probability;
      slope += rise;
    }
    if (std::abs(above - k) < 1e-4 * k) break;
    (above > k ? low : high) = threshold;
    threshold += above / slope * std::log(above / k);
    if (!(threshold > low && threshold < high)) threshold = (low + high) / 2;
  }
  return threshold;
}

// How often each expert is chosen, but for a factor.
std::vector<double> choices_of(std::span<const float> offsets, Noise noise, int k) {
  std::vector<double> found;
  if (noise == Noise::gumbel && k == 1) {
    const float top = *std::max_element(offsets.begin(), offsets.end());
    for (const float offset : offsets) found.push_back(std::exp(double{offset} - top));
    return found;
  }
  const Chance& chance = chance_of(noise);
  const double threshold = threshold_of(offsets, chance, k);
  for (const float offset : offsets) found.push_back(chance.at(offset - threshold).chance);
  return found;
}

}  // namespace

double busiest_load(std::span<const float> offsets, Noise noise, int ranks, int k) {
  if (static_cast<std::size_t>(k) >= offsets.size()) return 1;
  const std::vector<double> choices = choices_of(offsets, noise, k);
  const std::size_t local = choices.size() / static_cast<std::size_t>(ranks);
  double most = 0;
  double all = 0;
  double of_rank = 0;
  for (std::size_t expert = 0; expert < choices.size(); ++expert) {
    of_rank += choices[expert];
    if ((expert + 1) % local != 0) continue;
    most = std::max(most, of_rank);
    all += of_rank;
    of_rank = 0;
  }
  return most / all * ranks;
}

}  // namespace moesim::routing
