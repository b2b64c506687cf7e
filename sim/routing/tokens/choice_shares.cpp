#include "sim/routing/tokens/choice_shares.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

namespace {

constexpr double negligible = 1e-10;
constexpr std::size_t block = 8;  // abscissas at a time, over which the compiler vectorises
constexpr int most_abscissas = 4096;

struct Integrand {
  std::vector<double> offsets;  // the finite ones
  Noise noise;
  int choices;

  double above(double score, double offset) const {
    if (noise == Noise::normal) return 0.5 * std::erfc((score - offset) * M_SQRT1_2);
    return -std::expm1(-std::exp(offset - score));
  }
  double density(double score, double offset) const {
    const double away = score - offset;
    if (noise == Noise::normal) return std::exp(-0.5 * away * away) / std::sqrt(2 * M_PI);
    return std::exp(-away - std::exp(-away));
  }
  // P(fewer than `choices` experts score above).
  double few_above(double score) const {
    double count[max_choices] = {1};
    for (const double offset : offsets) {
      const double p = above(score, offset);
      for (int number = choices - 1; number > 0; --number) {
        count[number] += p * (count[number - 1] - count[number]);
      }
      count[0] -= p * count[0];
    }
    return std::accumulate(count, count + choices, 0.0);
  }
};

// Moves offsets so far apart that noise never makes up for it (e^-40 of all draws) to that distance
// from the next one, and those as far below the one of the last choice to the same place: what is
// chosen stays, and a grid over the scores is no longer than it has to be.
void draw_together(std::vector<double>& offsets, int choices) {
  constexpr double beyond_noise = 40;
  std::vector<std::size_t> order(offsets.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return offsets[a] > offsets[b]; });
  double last = offsets[order.front()];  // of the one before, as it was
  double moved = 0;                      // all that follow
  double least = -INFINITY;              // behind the last choice
  for (std::size_t place = 0; place < order.size(); ++place) {
    double& offset = offsets[order[place]];
    moved += std::max(0.0, last - offset - beyond_noise);
    last = offset;
    if (moved > 0) offset += moved;
    if (place + 1 == static_cast<std::size_t>(choices)) least = offset - beyond_noise;
    offset = std::max(offset, least);
  }
}

struct Grid {
  double low, step;
  std::size_t count;
};

// A grid from a score that nearly always at least `choices` experts exceed to one that nearly none
// exceeds. The step resolves the narrowest order statistic: the standard deviation of the k-th
// largest score is about sqrt(k) over the density of scores there.
Grid grid_of(const Integrand& of) {
  const auto [least, most] = std::minmax_element(of.offsets.begin(), of.offsets.end());
  const bool normal = of.noise == Noise::normal;
  const auto experts = static_cast<double>(of.offsets.size());
  const double high = *most + (normal ? 6.5 : std::log(experts / negligible));
  double low = *least - (normal ? 6.5 : 3.3);
  double enough = high;
  for (int halving = 0; halving < 24; ++halving) {
    const double middle = 0.5 * (low + enough);
    (of.few_above(middle) < negligible ? low : enough) = middle;
  }
  double sum = 0;
  double score = high;
  while (sum < of.choices && score > low) {
    score -= 0.05;
    sum = 0;
    for (const double offset : of.offsets) sum += of.above(score, offset);
  }
  double slope = 0;
  for (const double offset : of.offsets) slope += of.density(score, offset);
  const double widest = normal ? 0.25 : 0.4;
  const double width = std::sqrt(static_cast<double>(of.choices)) / std::max(slope, 1e-3);
  const double step = std::min(widest, 0.5 * width);
  const double count = std::min<double>(std::ceil((high - low) / step) + 1, most_abscissas);
  return {low, (high - low) / (count - 1), static_cast<std::size_t>(count)};
}

// The numbers of experts above a score, as truncated generating functions: the product of the
// function of the experts before an expert and of those behind it is that of all others.
class Sweep {
 public:
  Sweep(const Integrand& of, std::vector<double>& shares)
      : of_(of),
        shares_(shares),
        experts_(of.offsets.size()),
        choices_(static_cast<std::size_t>(of.choices)),
        above_(experts_ * block),
        before_(experts_ * choices_ * block) {}

  void add(const double (&score)[block], double weight) {
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      for (std::size_t at = 0; at < block; ++at) {
        above_[expert * block + at] = of_.above(score[at], of_.offsets[expert]);
      }
    }
    std::vector<double> number(choices_ * block, 0.0);
    std::fill_n(number.begin(), block, 1.0);
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      std::copy(number.begin(), number.end(),
                before_.begin() + static_cast<std::ptrdiff_t>(expert * choices_ * block));
      include(expert, number);
    }
    std::fill(number.begin(), number.end(), 0.0);
    std::fill_n(number.begin(), block, 1.0);
    for (std::size_t expert = experts_; expert-- > 0;) {
      double density[block];
      for (std::size_t at = 0; at < block; ++at) {
        density[at] = weight * of_.density(score[at], of_.offsets[expert]);
      }
      combine(expert, density, number);
      include(expert, number);
    }
  }

 private:
  void include(std::size_t expert, std::vector<double>& number) const {
    const double* p = above_.data() + expert * block;
    for (std::size_t choice = choices_; choice-- > 0;) {
      double* here = number.data() + choice * block;
      const double* one_less = choice > 0 ? number.data() + (choice - 1) * block : none_;
      for (std::size_t at = 0; at < block; ++at) here[at] += p[at] * (one_less[at] - here[at]);
    }
  }

  void combine(std::size_t expert, const double (&density)[block],
               const std::vector<double>& behind) {
    const double* before = before_.data() + expert * choices_ * block;
    for (std::size_t choice = 0; choice < choices_; ++choice) {
      double product[block] = {};
      for (std::size_t number = 0; number <= choice; ++number) {
        const double* left = before + number * block;
        const double* right = behind.data() + (choice - number) * block;
        for (std::size_t at = 0; at < block; ++at) product[at] += left[at] * right[at];
      }
      double sum = 0;
      for (std::size_t at = 0; at < block; ++at) sum += density[at] * product[at];
      shares_[choice * experts_ + expert] += sum;
    }
  }

  const Integrand& of_;
  std::vector<double>& shares_;
  std::size_t experts_, choices_;
  double none_[block] = {};
  std::vector<double> above_;   // [expert][block]
  std::vector<double> before_;  // [expert][choice][block]
};

}  // namespace

std::vector<double> choice_shares(std::span<const float> offsets, Noise noise, int choices) {
  Integrand of{{}, noise, choices};
  std::vector<std::size_t> place;
  for (std::size_t expert = 0; expert < offsets.size(); ++expert) {
    if (std::isinf(offsets[expert])) continue;
    of.offsets.push_back(static_cast<double>(offsets[expert]));
    place.push_back(expert);
  }
  draw_together(of.offsets, choices);
  const Grid grid = grid_of(of);
  std::vector<double> finite(place.size() * static_cast<std::size_t>(choices), 0.0);
  Sweep sweep(of, finite);
  for (std::size_t first = 0; first < grid.count; first += block) {
    double score[block];
    for (std::size_t at = 0; at < block; ++at) {
      score[at] = grid.low + grid.step * static_cast<double>(first + at);
    }
    sweep.add(score, grid.step);
  }
  std::vector<double> shares(offsets.size() * static_cast<std::size_t>(choices), 0.0);
  for (std::size_t choice = 0; choice < static_cast<std::size_t>(choices); ++choice) {
    const double* row = finite.data() + choice * place.size();
    double sum = 0;
    for (std::size_t at = 0; at < place.size(); ++at) sum += row[at];
    for (std::size_t at = 0; at < place.size(); ++at) {
      shares[choice * offsets.size() + place[at]] = row[at] / sum;
    }
  }
  return shares;
}

}  // namespace moesim::routing
