#include "sim/routing/counts/count_distribution.hpp"

#include <algorithm>
#include <boost/math/special_functions/erf.hpp>
#include <cmath>
#include <cstring>

#include "sim/base/statistics.hpp"

namespace moesim::routing {

namespace {

// The variance from which on the expansion is within 1e-3 of a count on average.
constexpr double expanded_variance = 25;
// The limit for a single quantile, whose count may be off by one in a few per cent of the cases.
constexpr double least_expanded = 9;
constexpr double far = 5.5;  // standard normals are truncated here: one in 2.6e7

double normal_quantile(double below, double above) {
  if (below < above) return -M_SQRT2 * boost::math::erfc_inv(2 * std::max(below, 1e-300));
  return M_SQRT2 * boost::math::erfc_inv(2 * std::max(above, 1e-300));
}

struct Expansion {
  double c0, c1, c2, c3;
};

// count + uniform noise = c0 + c1 w + c2 w^2 + c3 w^3, by its first four cumulants.
Expansion cornish_fisher(double mean, double variance, double skewness, double kurtosis) {
  const double deviation = std::sqrt(variance + 1.0 / 12);
  const double shrink = variance / (variance + 1.0 / 12);
  const double skew = skewness * shrink * std::sqrt(shrink);
  const double tail = kurtosis * shrink * shrink;
  const double square = skew * skew / 36;
  return {mean - deviation * skew / 6, deviation * (1 - tail / 8 + 5 * square),
          deviation * skew / 6, deviation * (tail / 24 - 2 * square)};
}

Expansion binomial_expansion(double trials, double share) {
  const double variance = trials * share * (1 - share);
  return cornish_fisher(trials * share, variance, (1 - 2 * share) / std::sqrt(variance),
                        (1 - 6 * share * (1 - share)) / variance);
}

// `none(trials, share)`: P(count = 0), of a share up to a half.
template <class None>
std::int32_t binomial_quantile(std::int32_t trials, double share, double z, const None& none) {
  if (trials <= 0 || share <= 0) return 0;
  if (share >= 1) return trials;
  const double mean = trials * share;
  const double variance = mean * (1 - share);
  if (variance >= least_expanded) {
    const Expansion by = binomial_expansion(trials, share);
    const double value = ((by.c3 * z + by.c2) * z + by.c1) * z + by.c0;
    return static_cast<std::int32_t>(std::clamp(std::floor(value + 0.5), 0.0, trials * 1.0));
  }
  if (share > 0.5) return trials - binomial_quantile(trials, 1 - share, -z, none);
  // Searched upwards from 0: the mean is below 18.
  const double below = 0.5 * std::erfc(-z * M_SQRT1_2);
  const double odds = share / (1 - share);
  double weight = none(trials, share);
  double sum = weight;
  std::int32_t count = 0;
  while (sum < below && count < trials) {
    weight *= odds * (trials - count) / (count + 1);
    sum += weight;
    ++count;
    if (count > mean && weight < 1e-17) break;
  }
  return count;
}

}  // namespace

CountDistribution::CountDistribution(std::span<const double> shares, std::int64_t tokens,
                                     int per_token, SimdLevel level)
    : tokens_(tokens), per_token_(per_token), kernels_(&edge_count_kernels(level)) {
  experts_.reserve(shares.size());
  std::vector<double> variance;
  for (const double share : shares) {
    const double inside = std::clamp(share, 0.0, 1.0);
    variance.push_back(inside * (1 - inside));
    add_marginal(inside);
  }
  correlate(variance);
  const double most = *std::max_element(variance.begin(), variance.end());
  for (std::size_t expert = 0; expert < variance.size(); ++expert) {
    if (variance[expert] > most / 16) adjustable_.push_back(static_cast<std::uint32_t>(expert));
  }
}

// Finds d: d - d^2 / D = v with D = sum d. Each d is the smaller root of its equation, except for
// an expert whose variance is nearly larger than all others together, which may need the larger
// root.
void CountDistribution::correlate(std::span<const double> variance) {
  const auto most = std::max_element(variance.begin(), variance.end());
  const auto dominant = static_cast<std::size_t>(most - variance.begin());
  if (*most <= 0) return;
  const auto root_of = [&](double total, std::size_t expert, bool greater) {
    const double inside = std::sqrt(std::max(0.0, 1 - 4 * variance[expert] / total));
    return 0.5 * total * (greater ? 1 + inside : 1 - inside);
  };
  const auto excess = [&](double total, bool greater) {
    double sum = -total;
    for (std::size_t expert = 0; expert < variance.size(); ++expert) {
      sum += root_of(total, expert, greater && expert == dominant);
    }
    return sum;
  };
  double low = 4 * *most;
  const bool greater = excess(low, false) < 0;
  double high = 2 * low;
  // With the larger root the excess starts below 0 and has to rise; otherwise it falls.
  const auto beyond = [&](double total) { return (excess(total, greater) > 0) == greater; };
  for (int doubling = 0; doubling < 40 && !beyond(high); ++doubling) high *= 2;
  for (int halving = 0; halving < 60; ++halving) {
    const double middle = 0.5 * (low + high);
    (beyond(middle) ? high : low) = middle;
  }
  for (std::size_t expert = 0; expert < variance.size(); ++expert) {
    const double d = root_of(high, expert, greater && expert == dominant);
    Marginal& marginal = experts_[expert];
    if (variance[expert] <= 0 || d <= 0) continue;
    marginal.root = static_cast<float>(std::sqrt(d));
    marginal.slope = static_cast<float>(std::sqrt(d) / high);
    marginal.scale = static_cast<float>(1 / std::sqrt(std::max(1e-12, 1 - d / high)));
  }
}

void CountDistribution::add_marginal(double share) {
  const double trials = static_cast<double>(tokens_);
  const double mean = trials * share;
  const double variance = mean * (1 - share);
  Marginal& marginal = experts_.emplace_back();
  marginal.edge_begin = static_cast<std::uint32_t>(edges_.size());
  if (variance >= expanded_variance) {
    const Expansion by = binomial_expansion(trials, share);
    marginal.c0 = static_cast<float>(by.c0);
    marginal.c1 = static_cast<float>(by.c1);
    marginal.c2 = static_cast<float>(by.c2);
    marginal.c3 = static_cast<float>(by.c3);
  } else {
    add_edges(share, mean, std::sqrt(variance));
  }
  marginal.edge_end = static_cast<std::uint32_t>(edges_.size());
}

// Edge n is the point at which the distribution function reaches P(count <= n).
void CountDistribution::add_edges(double share, double mean, double deviation) {
  Marginal& marginal = experts_.back();
  const double trials = static_cast<double>(tokens_);
  if (deviation <= 0) {
    marginal.first = static_cast<std::int32_t>(std::lround(mean));
    return;
  }
  const double spread = far * deviation + far * far / 2;
  const double first = std::floor(std::max(0.0, mean - far * deviation - 1));
  const double last = std::ceil(std::min(trials, mean + spread));
  const auto count = static_cast<std::size_t>(last - first) + 1;
  std::vector<double> weight(count);
  const double odds = std::log(share / (1 - share));
  for (std::size_t at = 0; at < count; ++at) {
    const double n = first + static_cast<double>(at);
    weight[at] = std::exp(log_gamma(trials + 1) - log_gamma(n + 1) - log_gamma(trials - n + 1) +
                          n * odds + trials * std::log1p(-share));
  }
  std::vector<double> above(count + 1, 0.0);  // P(count >= first + at)
  for (std::size_t at = count; at-- > 0;) above[at] = above[at + 1] + weight[at];
  marginal.first = static_cast<std::int32_t>(first);
  double below = 0;
  for (std::size_t at = 0; at + 1 < count; ++at) {
    below += weight[at];
    edges_.push_back(static_cast<float>(normal_quantile(below, above[at + 1])));
  }
}

void CountDistribution::draw(float* z, int gpus, std::int32_t* counts) const {
  constexpr int lanes = tile_tokens;
  const std::size_t experts = experts_.size();
  float total[lanes] = {};
  for (std::size_t expert = 0; expert < experts; ++expert) {
    const float* row = z + expert * lanes;
    for (int gpu = 0; gpu < lanes; ++gpu) total[gpu] += experts_[expert].root * row[gpu];
  }
  std::vector<std::int32_t> drawn(experts * lanes);
  for (std::size_t expert = 0; expert < experts; ++expert) {
    const Marginal& marginal = experts_[expert];
    float* row = z + expert * lanes;
    std::int32_t* out = drawn.data() + expert * lanes;
    for (int gpu = 0; gpu < lanes; ++gpu) {
      row[gpu] = (row[gpu] - marginal.slope * total[gpu]) * marginal.scale;
    }
    if (marginal.c1 > 0) {
      const auto most = static_cast<std::int32_t>(tokens_);
      const auto about_most = static_cast<float>(tokens_);  // rounded, possibly up, beyond 2^24
      for (int gpu = 0; gpu < lanes; ++gpu) {
        const float w = row[gpu];
        const float value =
            ((marginal.c3 * w + marginal.c2) * w + marginal.c1) * w + marginal.c0 + 0.5F;
        const float bounded = std::min(std::max(value, 0.0F), about_most);
        out[gpu] = std::min(static_cast<std::int32_t>(bounded), most);
      }
      continue;
    }
    kernels_->count_edges(row, edges_.data() + marginal.edge_begin,
                          marginal.edge_end - marginal.edge_begin, marginal.first, out);
  }
  restore_total(z, reinterpret_cast<std::int32_t(*)[lanes]>(drawn.data()));
  for (int gpu = 0; gpu < gpus; ++gpu) {
    std::int32_t* row = counts + static_cast<std::size_t>(gpu) * experts;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      row[expert] = drawn[expert * lanes + static_cast<std::size_t>(gpu)];
    }
  }
}

// Rounding leaves a few routes too many or too few, about the square root of a twelfth of the
// number of experts: they are corrected by one each, starting at an arbitrary expert.
void CountDistribution::restore_total(const float* z, std::int32_t (*counts)[tile_tokens]) const {
  if (adjustable_.empty()) return;
  for (int gpu = 0; gpu < tile_tokens; ++gpu) {
    std::int64_t left = tokens_ * per_token_;
    for (std::size_t expert = 0; expert < experts_.size(); ++expert) left -= counts[expert][gpu];
    std::uint32_t bits = 0;
    std::memcpy(&bits, z + gpu, sizeof bits);
    std::size_t at = bits % adjustable_.size();
    std::size_t refused = 0;
    while (left != 0 && refused <= adjustable_.size()) {
      std::int32_t& count = counts[adjustable_[at]][gpu];
      const int step = left > 0 ? 1 : -1;
      if (count + step >= 0 && count + step <= tokens_) {
        count += step;
        left -= step;
        refused = 0;
      } else {
        ++refused;
      }
      at = at + 1 == adjustable_.size() ? 0 : at + 1;
    }
  }
}

std::int32_t binomial_quantile(std::int32_t trials, double share, double z) {
  return binomial_quantile(trials, share, z, [](std::int32_t of, double lesser) {
    return std::exp(of * std::log1p(-lesser));
  });
}

BinomialQuantiles::BinomialQuantiles(double share)
    : share_(share), log_miss_(std::log1p(-(share > 0.5 ? 1 - share : share))) {}

std::int32_t BinomialQuantiles::at(std::int32_t trials, double z) {
  constexpr std::int32_t most_known = 1024;
  return binomial_quantile(trials, share_, z, [&](std::int32_t of, double /*lesser*/) {
    if (of >= most_known) return std::exp(of * log_miss_);
    const auto place = static_cast<std::size_t>(of);
    if (place >= none_.size()) none_.resize(place + 1, -1.0);
    if (none_[place] < 0) none_[place] = std::exp(of * log_miss_);
    return none_[place];
  });
}

std::int64_t hypergeometric_quantile(std::int64_t all, std::int64_t marked, std::int64_t drawn,
                                     double z) {
  const std::int64_t least = std::max<std::int64_t>(0, drawn + marked - all);
  const std::int64_t most = std::min(drawn, marked);
  if (least >= most) return least;
  const auto n = static_cast<double>(all);
  const double share = static_cast<double>(marked) / n;
  const double mean = static_cast<double>(drawn) * share;
  const double variance = mean * (1 - share) * (n - static_cast<double>(drawn)) / (n - 1);
  const double skewness = (1 - 2 * share) * (n - 2 * static_cast<double>(drawn)) /
                          (std::max(1.0, n - 2) * std::sqrt(variance));
  const Expansion by = cornish_fisher(mean, variance, std::clamp(skewness, -1.0, 1.0), 0);
  const double value = ((by.c3 * z + by.c2) * z + by.c1) * z + by.c0;
  return std::clamp(static_cast<std::int64_t>(std::floor(value + 0.5)), least, most);
}

std::int64_t hypergeometric_quantile(std::int64_t all, std::int64_t marked, std::int64_t drawn,
                                     double z, std::span<const double> log_factorials) {
  const std::int64_t least = std::max<std::int64_t>(0, drawn + marked - all);
  const std::int64_t most = std::min(drawn, marked);
  if (least >= most) return least;
  const std::int64_t others = all - marked;
  const double variance =
      static_cast<double>(drawn) * static_cast<double>(marked) * static_cast<double>(others) *
      static_cast<double>(all - drawn) /
      (static_cast<double>(all) * static_cast<double>(all) * static_cast<double>(all - 1));
  if (variance >= least_expanded) return hypergeometric_quantile(all, marked, drawn, z);
  const auto log_choose = [&](std::int64_t from, std::int64_t taken) {
    const auto log_factorial = [&](std::int64_t n) {
      return log_factorials[static_cast<std::size_t>(n)];
    };
    return log_factorial(from) - log_factorial(taken) - log_factorial(from - taken);
  };
  // Searched upwards from the minimum: with so little variance the mean is close to it, or close to
  // 0.
  double weight = std::exp(log_choose(marked, least) + log_choose(others, drawn - least) -
                           log_choose(all, drawn));
  double sum = weight;
  const double below = 0.5 * std::erfc(-z * M_SQRT1_2);
  std::int64_t count = least;
  while (sum < below && count < most) {
    weight *= static_cast<double>((marked - count) * (drawn - count)) /
              static_cast<double>((count + 1) * (others - drawn + count + 1));
    sum += weight;
    ++count;
  }
  return count;
}

// The expansion is within deviation x reach of its mean: its skewness is at most 1 and it has no
// kurtosis (cornish_fisher). The slack is for rounding, here and there.
bool hypergeometric_is_below(std::int64_t limit, std::int64_t all, std::int64_t marked,
                             std::int64_t drawn, double z, std::span<const double> log_factorials) {
  constexpr double slack = 1.001;
  if (std::min(drawn, marked) < limit) return true;
  if (std::max<std::int64_t>(0, drawn + marked - all) >= limit) return false;
  const double each = 1 / static_cast<double>(all);
  const double share = static_cast<double>(marked) * each;
  const double mean = static_cast<double>(drawn) * share;
  const double variance = slack * mean * (1 - share) * static_cast<double>(all - drawn) /
                          std::max(1.0, static_cast<double>(all - 1));
  if (variance > slack * slack * least_expanded) {
    const double far_out = std::abs(z);
    const double square = z * z;
    const double reach = slack * (41.0 / 36 * far_out + (square + 1) / 6 + square * far_out / 18);
    const double gap = static_cast<double>(limit) - 0.5 - mean;
    if (gap * gap > (variance + 1.0 / 12) * reach * reach) return gap > 0;
  }
  return hypergeometric_quantile(all, marked, drawn, z, log_factorials) < limit;
}

}  // namespace moesim::routing
