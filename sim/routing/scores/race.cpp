#include "sim/routing/scores/race.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

namespace moesim::routing {

namespace {

constexpr double most_inclusion = 0.999;

// log of the rate at which an expert without rivals arrives by time 1 with this probability.
double log_rate(double inclusion) { return std::log(-std::log1p(-inclusion)); }

// P(at most k - 1 of the other experts have arrived), for every expert, when expert f has arrived
// with probability arrived[f]: the distributions of the counts before and behind it are combined.
class OthersArrived {
 public:
  OthersArrived(std::size_t experts, std::size_t k)
      : experts_(experts), k_(k), before_((experts + 1) * k), behind_((experts + 1) * k) {}

  void count(const std::vector<double>& arrived) {
    std::fill(before_.begin(), before_.end(), 0.0);
    std::fill(behind_.begin(), behind_.end(), 0.0);
    before_[0] = 1;
    behind_[experts_ * k_] = 1;
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      add(&before_[expert * k_], arrived[expert], &before_[(expert + 1) * k_]);
      const std::size_t last = experts_ - 1 - expert;
      add(&behind_[(last + 1) * k_], arrived[last], &behind_[last * k_]);
    }
  }

  double fewer_than_k(std::size_t expert) const {
    const double* before = &before_[expert * k_];
    const double* behind = &behind_[(expert + 1) * k_];
    double probability = 0;
    double at_most = 0;  // of the experts behind it: k - 1 - early
    for (std::size_t early = k_; early-- > 0;) {
      at_most += behind[k_ - 1 - early];
      probability += before[early] * at_most;
    }
    return probability;
  }

 private:
  void add(const double* from, double arrived, double* to) const {
    for (std::size_t count = 0; count < k_; ++count) {
      to[count] = from[count] * (1 - arrived) + (count > 0 ? from[count - 1] * arrived : 0.0);
    }
  }

  std::size_t experts_, k_;
  std::vector<double> before_, behind_;  // [experts + 1, arrivals below k]
};

struct Integrals {
  std::vector<double> inclusions;
  std::vector<double> own_slopes;  // d inclusion / d log-weight, all other weights fixed
};

// pi_e = integral of w_e exp(-w_e t) P(fewer than k others by t) dt, and its derivative the same
// with 1 - w_e t under the integral. In log t the integrand falls off exponentially on either side,
// where the trapezoid rule converges geometrically.
Integrals integrate(std::span<const double> log_weights, int k) {
  const std::size_t experts = log_weights.size();
  const double largest = *std::max_element(log_weights.begin(), log_weights.end());
  std::vector<double> rates;
  for (const double weight : log_weights) rates.push_back(std::exp(weight - largest));
  const double whole = std::accumulate(rates.begin(), rates.end(), 0.0);
  for (double& rate : rates) rate /= whole;  // one arrival per unit of time initially
  const double slowest = *std::min_element(rates.begin(), rates.end());
  Integrals result{std::vector<double>(experts, 0.0), std::vector<double>(experts, 0.0)};
  OthersArrived others(experts, static_cast<std::size_t>(k));
  std::vector<double> arrived(experts);
  constexpr double step = 0.2;
  const double last = std::log(40 / std::max(slowest, 1e-12));
  for (double log_time = -14; log_time < last; log_time += step) {
    const double time = std::exp(log_time);
    for (std::size_t expert = 0; expert < experts; ++expert) {
      arrived[expert] = -std::expm1(-rates[expert] * time);
    }
    others.count(arrived);
    double added = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const double density = rates[expert] * time * (1 - arrived[expert]);
      const double part = step * density * others.fewer_than_k(expert);
      result.inclusions[expert] += part;
      result.own_slopes[expert] += part * (1 - rates[expert] * time);
      added += part;
    }
    if (time > k && added < 1e-9) break;
  }
  return result;
}

// The change of a log-weight per change of its inclusion probability, if its rivals arrived at a
// fixed rate.
double free_shift(double from, double to) { return log_rate(to) - log_rate(from); }

}  // namespace

std::vector<double> race_inclusions(std::span<const double> log_weights, int k) {
  if (k == static_cast<int>(log_weights.size())) {
    return std::vector<double>(log_weights.size(), 1.0);
  }
  return integrate(log_weights, k).inclusions;
}

std::vector<double> capped_inclusions(std::span<const double> shares, int k) {
  const std::size_t experts = shares.size();
  std::vector<double> inclusion(experts, most_inclusion);
  std::vector<bool> capped(experts, false);
  double left = k;
  bool again = true;
  while (again) {
    again = false;
    double whole = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      if (!capped[expert]) whole += shares[expert];
    }
    for (std::size_t expert = 0; expert < experts; ++expert) {
      if (capped[expert]) continue;
      inclusion[expert] = left * shares[expert] / whole;
      if (inclusion[expert] <= most_inclusion) continue;
      inclusion[expert] = most_inclusion;
      capped[expert] = true;
      again = true;
    }
    left = k;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      if (capped[expert]) left -= most_inclusion;
    }
  }
  return inclusion;
}

// Fixed-point iteration: weights change by the missing probability, as if each expert's rivals
// arrived at a fixed rate; with two or more experts beyond the k this converges quickly.
std::vector<double> race_log_weights(std::span<const double> shares, int k) {
  std::vector<double> weights;
  if (k == static_cast<int>(shares.size())) return std::vector<double>(shares.size(), 0.0);
  const std::vector<double> wanted = capped_inclusions(shares, k);
  for (const double inclusion : wanted) {
    weights.push_back(k == 1 ? std::log(inclusion) : log_rate(inclusion));
  }
  for (int round = 0; k > 1 && round < 40; ++round) {
    const std::vector<double> reached = race_inclusions(weights, k);
    double off = 0;
    for (std::size_t expert = 0; expert < weights.size(); ++expert) {
      const double now = std::clamp(reached[expert], 1e-12, 1 - 1e-9);
      weights[expert] += free_shift(now, wanted[expert]);
      off = std::max(off, std::abs(now - wanted[expert]));
    }
    if (off < 2e-5) break;
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) weight -= largest;
  return weights;
}

// With dpi_e = a_e (d_e - sum a d / sum a) for changes d of the log-weights, an expert's own slope
// is a_e - a_e^2 / sum a; while the inclusions sum to k, d_e = dpi_e / a_e.
Race::Race(const std::vector<double>& shares, int k)
    : top_k(k),
      log_weights(race_log_weights(shares, k)),
      inclusions(capped_inclusions(shares, k)),
      slopes(shares.size(), 1.0) {
  if (k == 1 || k == static_cast<int>(shares.size())) return;
  const std::vector<double> own = integrate(log_weights, k).own_slopes;
  std::vector<double> influence = own;
  for (int round = 0; round < 50; ++round) {
    const double whole = std::accumulate(influence.begin(), influence.end(), 0.0);
    for (std::size_t expert = 0; expert < own.size(); ++expert) {
      influence[expert] = own[expert] + influence[expert] * influence[expert] / whole;
    }
  }
  for (std::size_t expert = 0; expert < own.size(); ++expert) {
    slopes[expert] = inclusions[expert] / influence[expert];
  }
}

// The slope is valid at the inclusions of the race; how it changes away from them is computed for
// rivals at a fixed rate.
std::vector<double> Race::moved_to(std::span<const double> wanted) const {
  std::vector<double> weights = log_weights;
  for (std::size_t expert = 0; expert < weights.size(); ++expert) {
    const double from = inclusions[expert];
    if (top_k == 1) {
      weights[expert] += std::log(wanted[expert] / from);
    } else if (top_k < static_cast<int>(weights.size())) {
      const double free_slope = from / ((1 - from) * -std::log1p(-from));
      weights[expert] += slopes[expert] / free_slope * free_shift(from, wanted[expert]);
    }
  }
  return weights;
}

namespace {

// d inclusion / d log-weight, if rivals arrived at a fixed rate.
double free_slope(double inclusion) { return (1 - inclusion) * -std::log1p(-inclusion); }

// The change of a log-weight shared by all types with which the mean of an expert's inclusion
// probabilities `of_types` becomes `wanted`: the change without types, multiplied by how much less
// the mean depends on a weight because some types choose the expert nearly always and others
// rarely.
double shared_shift(const std::vector<double>& of_types, double wanted) {
  const auto types = static_cast<double>(of_types.size());
  double mean = 0;
  double slope = 0;
  for (const double inclusion : of_types) {
    mean += inclusion / types;
    slope += free_slope(inclusion) / types;
  }
  const double part = std::clamp(free_slope(mean) / std::max(slope, 1e-12), 1.0, 8.0);
  return std::clamp(part * free_shift(mean, wanted), -2.0, 2.0);
}

}  // namespace

MixedRace::MixedRace(const std::vector<double>& shares, int k, Types terms)
    : top_k_(k), terms_(std::move(terms)), shared_(race_log_weights(shares, k)) {
  const std::vector<double> wanted = capped_inclusions(shares, k);
  search(wanted, 1e-3, inclusions_of(shared_), shared_);
  reached_ = inclusions_of(shared_);
}

MixedRace::Types MixedRace::with_terms(const std::vector<double>& shared) const {
  Types weights = terms_;
  for (std::vector<double>& of_type : weights) {
    for (std::size_t expert = 0; expert < shared.size(); ++expert)
      of_type[expert] += shared[expert];
    const double largest = *std::max_element(of_type.begin(), of_type.end());
    for (double& weight : of_type) weight -= largest;
  }
  return weights;
}

MixedRace::Types MixedRace::inclusions_of(const std::vector<double>& shared) const {
  Types inclusions;
  for (const std::vector<double>& of_type : with_terms(shared)) {
    inclusions.push_back(race_inclusions(of_type, top_k_));
    for (double& each : inclusions.back()) each = std::clamp(each, 1e-12, 1 - 1e-9);
  }
  return inclusions;
}

void MixedRace::search(std::span<const double> wanted, double part, Types reached,
                       std::vector<double>& shared) const {
  constexpr int most_rounds = 100;
  std::vector<double> of_types(terms_.size());
  for (int round = 0; round < most_rounds; ++round) {
    bool close = true;
    for (std::size_t expert = 0; expert < shared.size(); ++expert) {
      double mean = 0;
      for (std::size_t number = 0; number < of_types.size(); ++number) {
        of_types[number] = reached[number][expert];
        mean += of_types[number] / static_cast<double>(of_types.size());
      }
      close = close && std::abs(mean - wanted[expert]) < 2e-5 + part * wanted[expert];
      shared[expert] += shared_shift(of_types, wanted[expert]);
    }
    if (close) return;  // applying the last, small shift is harmless
    reached = inclusions_of(shared);
  }
}

MixedRace::Types MixedRace::moved_to(std::span<const double> inclusions) const {
  std::vector<double> shared = shared_;
  search(inclusions, 5e-3, reached_, shared);
  return with_terms(shared);
}

}  // namespace moesim::routing
