#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "sim/routing/counts/sampled_counts.hpp"

namespace moesim::routing {

namespace {

// 1, three powers of the offset, and the mean weight of its group.
constexpr std::size_t features = 5;
using Features = std::array<double, features>;

// Weighted least squares by the normal equations; features without variation get 0.
Features fit(const std::vector<Features>& rows, const std::vector<double>& values,
             const std::vector<double>& noise) {
  double matrix[features][features + 1] = {};
  for (std::size_t at = 0; at < rows.size(); ++at) {
    for (std::size_t row = 0; row < features; ++row) {
      const double weighted = rows[at][row] / noise[at];
      for (std::size_t column = 0; column < features; ++column) {
        matrix[row][column] += weighted * rows[at][column];
      }
      matrix[row][features] += weighted * values[at];
    }
  }
  double largest = 0;
  for (std::size_t row = 0; row < features; ++row) largest = std::max(largest, matrix[row][row]);
  for (std::size_t row = 0; row < features; ++row) matrix[row][row] += 1e-9 * largest + 1e-12;
  for (std::size_t pivot = 0; pivot < features; ++pivot) {  // positive definite
    for (std::size_t row = 0; row < features; ++row) {
      if (row == pivot) continue;
      const double factor = matrix[row][pivot] / matrix[pivot][pivot];
      for (std::size_t column = pivot; column <= features; ++column) {
        matrix[row][column] -= factor * matrix[pivot][column];
      }
    }
  }
  Features found{};
  for (std::size_t row = 0; row < features; ++row)
    found[row] = matrix[row][features] / matrix[row][row];
  return found;
}

void standardise(std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double square = 0;
  for (double& value : values) {
    value -= mean;
    square += value * value;
  }
  const double deviation = std::sqrt(square / count);
  for (double& value : values) value = deviation > 1e-9 ? value / deviation : 0.0;
}

// [group] The variance of the logarithm of a group's routes in the sample.
std::vector<double> group_noise(const LayerSample& sample, std::size_t groups,
                                std::size_t per_group) {
  const std::size_t choices = sample.expert.size() / sample.tokens;
  std::vector<double> sum(groups, 0.0), squares(groups, 0.0);
  std::vector<int> here(groups);
  for (std::size_t token = 0; token < sample.tokens; ++token) {
    std::fill(here.begin(), here.end(), 0);
    for (std::size_t choice = 0; choice < choices; ++choice) {
      ++here[sample.expert[choice * sample.tokens + token] / per_group];
    }
    for (std::size_t group = 0; group < groups; ++group) {
      sum[group] += here[group];
      squares[group] += here[group] * here[group];
    }
  }
  const auto tokens = static_cast<double>(sample.tokens);
  std::vector<double> noise;
  for (std::size_t group = 0; group < groups; ++group) {
    const double mean = (sum[group] + 0.5) / tokens;
    const double variance = std::max(0.0, squares[group] / tokens - mean * mean);
    noise.push_back(std::max(1e-12, variance / (tokens * mean * mean)));
  }
  return noise;
}

// What is kept of a term whose variance is `own` beside noise: its variance is then `own`.
double kept_part(double own, double noise) { return own > 0 ? std::sqrt(own / (own + noise)) : 0; }

// The part of the terms' variance that noise does not explain, less the standard error of that
// difference: without terms nothing is found in five cases of six.
double own_variance(const std::vector<double>& terms, const std::vector<double>& noise,
                    double fitted) {
  double sum = 0;
  double weights = 0;
  for (std::size_t at = 0; at < terms.size(); ++at) {
    const double weight = 1 / (noise[at] * noise[at]);
    sum += weight * (terms[at] * terms[at] - noise[at]);
    weights += weight;
  }
  const auto count = static_cast<double>(terms.size());
  if (count <= fitted) return 0.0;
  const double found = sum / weights * count / (count - fitted);
  return std::max(0.0, found - std::sqrt(2 / weights));
}

// Shares that sum to `sum`, none above 1, in these ratios where they are below.
void scale_to(double sum, std::vector<double>& shares) {
  for (int round = 0; round < 50; ++round) {
    double full = 0;
    double rest = 0;
    for (const double share : shares) (share >= 1 ? full : rest) += std::min(1.0, share);
    if (rest <= 0 || std::abs(full + rest - sum) < 1e-12 * sum) break;
    for (double& share : shares) share = share >= 1 ? 1.0 : share * (sum - full) / rest;
  }
}

}  // namespace

std::vector<double> smoothed_shares(const LayerSample& sample, std::span<const float> offsets,
                                    int groups, int top_k) {
  const std::size_t per_group = offsets.size() / static_cast<std::size_t>(groups);
  const auto tokens = static_cast<double>(sample.tokens);
  std::vector<double> chosen(offsets.size(), 0.0);
  for (const std::uint16_t expert : sample.expert) chosen[expert] += 1;
  std::vector<std::size_t> known;  // experts that can be chosen
  std::vector<double> offset, of_group, value, noise;
  for (std::size_t expert = 0; expert < offsets.size(); ++expert) {
    if (std::isinf(offsets[expert])) continue;
    known.push_back(expert);
    offset.push_back(static_cast<double>(offsets[expert]));
    const double with = chosen[expert] + 0.5;
    const double without = tokens - chosen[expert] + 0.5;
    value.push_back(std::log(with / without));
    noise.push_back(1 / with + 1 / without);
    const std::size_t first = expert / per_group * per_group;
    double weight = 0;
    for (std::size_t at = first; at < first + per_group; ++at) {
      weight += std::exp(static_cast<double>(offsets[at]));
    }
    of_group.push_back(std::log(weight));
  }
  standardise(offset);
  standardise(of_group);
  std::vector<Features> rows;
  for (std::size_t at = 0; at < known.size(); ++at) {
    const double x = offset[at];
    rows.push_back({1, x, x * x, x * x * x, of_group[at]});
  }
  const Features law = fit(rows, value, noise);
  std::vector<double> expected;
  for (const Features& row : rows) {
    expected.push_back(std::inner_product(row.begin(), row.end(), law.begin(), 0.0));
  }

  const auto all_groups = static_cast<std::size_t>(groups);
  std::vector<double> term(all_groups, 0.0), weights(all_groups, 0.0);
  for (std::size_t at = 0; at < known.size(); ++at) {
    term[known[at] / per_group] += (value[at] - expected[at]) / noise[at];
    weights[known[at] / per_group] += 1 / noise[at];
  }
  for (std::size_t group = 0; group < all_groups; ++group) {
    term[group] = weights[group] > 0 ? term[group] / weights[group] : 0.0;
  }
  const std::vector<double> noise_of_group = group_noise(sample, all_groups, per_group);
  const double group_variance = groups > 1 ? own_variance(term, noise_of_group, 2) : 0.0;
  std::vector<double> own;
  for (std::size_t at = 0; at < known.size(); ++at) {
    own.push_back(value[at] - expected[at] - term[known[at] / per_group]);
  }
  const double variance = own_variance(own, noise, static_cast<double>(features + all_groups));

  std::vector<double> shares(offsets.size(), 0.0);
  for (std::size_t at = 0; at < known.size(); ++at) {
    const std::size_t group = known[at] / per_group;
    const double logit = expected[at] +
                         kept_part(group_variance, noise_of_group[group]) * term[group] +
                         kept_part(variance, noise[at]) * own[at];
    shares[known[at]] = 1 / (1 + std::exp(-logit));
  }
  scale_to(top_k, shares);
  return shares;
}

}  // namespace moesim::routing
