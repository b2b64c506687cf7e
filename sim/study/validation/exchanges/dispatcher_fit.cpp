#include "sim/study/validation/exchanges/dispatcher_fit.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "sim/base/statistics.hpp"

namespace moesim::study {
namespace {

using profile::StageCost;
using Vector = std::vector<double>;

// A figure of StageCost, where it starts and what bounds it.
struct Figure {
  double StageCost::*member;
  double start, least, most;
};
constexpr Figure figures[] = {
    {&StageCost::fixed_us, 20, 2, 100},         {&StageCost::doubling_us, 1, 0.01, 20},
    {&StageCost::fill_us, 5, 0.1, 100},         {&StageCost::token_ns, 100, 1, 5000},
    {&StageCost::copy_ns, 50, 1, 2000},         {&StageCost::sm_bytes_per_us, 40e3, 5e3, 1e6},
    {&StageCost::expert_row_ns, 50, 0.1, 2000},
};
constexpr double rough = 0.1;  // errors of this size and more count by their size
constexpr double probe = 1e-4;

class Fit {
 public:
  Fit(const StageCost& like, const std::vector<const DispatchSample*>& samples, double nic,
      bool fits_link)
      : cost_(like), samples_(samples), nic_(nic), fits_link_(fits_link) {
    for (const Figure& figure : figures) {
      if (like.*figure.member == 0) continue;
      free_.push_back(&figure);
      logs_.push_back(std::log(figure.start));
    }
    if (fits_link_) logs_.push_back(std::log(0.6));
  }

  StageCost run() {
    double damping = 1e-2;
    double loss = loss_of(logs_);
    for (int step = 0; step < 60 && damping < 1e8; ++step) {
      const Vector moved = bounded(solve(damping));
      const double next = loss_of(moved);
      if (next < loss) {
        const bool done = loss - next < 1e-7 * loss;
        logs_ = moved;
        loss = next;
        damping = std::max(damping / 5, 1e-9);
        if (done) break;
      } else {
        damping *= 5;
      }
    }
    return cost_at(logs_);
  }

 private:
  StageCost cost_at(const Vector& logs) const {
    StageCost cost = cost_;
    for (std::size_t at = 0; at < free_.size(); ++at) cost.*free_[at]->member = std::exp(logs[at]);
    if (fits_link_) cost.link_efficiency.value = std::exp(logs.back());
    return cost;
  }

  Vector bounded(Vector logs) const {
    for (std::size_t at = 0; at < free_.size(); ++at) {
      logs[at] = std::clamp(logs[at], std::log(free_[at]->least), std::log(free_[at]->most));
    }
    if (fits_link_) logs.back() = std::clamp(logs.back(), std::log(0.1), 0.0);
    return logs;
  }

  Vector errors(const Vector& logs) const {
    const StageCost cost = cost_at(logs);
    Vector errors;
    errors.reserve(samples_.size());
    for (const DispatchSample* sample : samples_) {
      errors.push_back(std::log(fitted_us(cost, *sample, nic_) / sample->time_us));
    }
    return errors;
  }

  static double softened(double error) {  // soft L1
    return 2 * rough * rough * (std::sqrt(1 + error * error / (rough * rough)) - 1);
  }

  double loss_of(const Vector& logs) const {
    double loss = 0;
    for (const double error : errors(logs)) loss += softened(error);
    return loss;
  }

  // The next point: normal equations, weighted by the slope of the loss.
  Vector solve(double damping) const {
    const std::size_t size = logs_.size();
    const Vector here = errors(logs_);
    std::vector<Vector> slopes;
    for (std::size_t at = 0; at < size; ++at) {
      Vector moved = logs_;
      moved[at] += probe;
      slopes.push_back(errors(moved));
    }
    std::vector<Vector> matrix(size, Vector(size + 1));
    for (std::size_t row = 0; row < here.size(); ++row) {
      const double weight = 1 / std::sqrt(1 + here[row] * here[row] / (rough * rough));
      for (std::size_t first = 0; first < size; ++first) {
        const double slope = (slopes[first][row] - here[row]) / probe;
        matrix[first][size] -= weight * slope * here[row];
        for (std::size_t second = 0; second < size; ++second) {
          matrix[first][second] += weight * slope * (slopes[second][row] - here[row]) / probe;
        }
      }
    }
    for (std::size_t at = 0; at < size; ++at) matrix[at][at] += damping * (matrix[at][at] + 1e-9);
    return plus(logs_, eliminated(std::move(matrix)));
  }

  static Vector eliminated(std::vector<Vector> matrix) {
    const std::size_t size = matrix.size();
    for (std::size_t pivot = 0; pivot < size; ++pivot) {
      for (std::size_t other = 0; other < size; ++other) {
        if (other == pivot) continue;
        const double factor = matrix[other][pivot] / matrix[pivot][pivot];
        for (std::size_t column = pivot; column <= size; ++column) {
          matrix[other][column] -= factor * matrix[pivot][column];
        }
      }
    }
    Vector solution(size);
    for (std::size_t at = 0; at < size; ++at) solution[at] = matrix[at][size] / matrix[at][at];
    return solution;
  }

  static Vector plus(Vector left, const Vector& right) {
    for (std::size_t at = 0; at < left.size(); ++at) left[at] += right[at];
    return left;
  }

  StageCost cost_;
  const std::vector<const DispatchSample*>& samples_;
  double nic_;
  bool fits_link_;
  std::vector<const Figure*> free_;
  Vector logs_;
};

}  // namespace

double fitted_us(const StageCost& cost, const DispatchSample& sample, double nic_efficiency) {
  return profile::stage_us(
      cost, sample.group, sample.load,
      {sample.row_bytes, cost.link_efficiency.value * sample.rates.link_bytes_per_us,
       nic_efficiency * sample.rates.nic_bytes_per_us, 0, sample.sms});
}

StageCost fit_stage(const StageCost& like, const std::vector<const DispatchSample*>& samples,
                    double nic_efficiency, bool fits_link) {
  StageCost cost = Fit(like, samples, nic_efficiency, fits_link).run();
  Vector ratios;
  for (const DispatchSample* sample : samples) {
    ratios.push_back(sample->time_us / fitted_us(cost, *sample, nic_efficiency));
  }
  cost.factor = {1, std::min(1.0, quantile(ratios, 0.05)), std::max(1.0, quantile(ratios, 0.95))};
  return cost;
}

}  // namespace moesim::study
