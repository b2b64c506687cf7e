#include "sim/study/validation/paper/calibrate.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/study/sweep/evaluate.hpp"

namespace moesim::study {
namespace {

using Vector = std::vector<double>;

constexpr int gauss_newton_steps = 3;
constexpr double probe = 0.05;  // step of the finite differences, in units of a multiplier

step::Calibration calibration_of(const std::vector<StudyMultiplier>& unknowns,
                                 const Vector& multipliers) {
  step::Calibration calibration;
  for (std::size_t index = 0; index < unknowns.size(); ++index) {
    for (const step::KernelClass kind : unknowns[index].classes) {
      calibration.multiplier[static_cast<std::size_t>(kind)] = multipliers[index];
    }
  }
  return calibration;
}

// Predicted over published step time at a point, and how it changes with each multiplier.
struct Linear {
  double value = 0;
  Vector slopes;
};

// Solves the normal equations of min |J x - r|^2 by Gaussian elimination; few unknowns.
Vector least_squares(const std::vector<Linear>& rows, const Vector& residuals) {
  const std::size_t size = rows.front().slopes.size();
  std::vector<Vector> matrix(size, Vector(size + 1));
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (std::size_t first = 0; first < size; ++first) {
      for (std::size_t second = 0; second < size; ++second) {
        matrix[first][second] += rows[row].slopes[first] * rows[row].slopes[second];
      }
      matrix[first][size] += rows[row].slopes[first] * residuals[row];
    }
  }
  for (std::size_t pivot = 0; pivot < size; ++pivot) {
    if (matrix[pivot][pivot] <= 1e-12) {
      throw Error("a study's rows do not tell its multipliers apart: fit fewer, or add rows");
    }
    for (std::size_t other = 0; other < size; ++other) {
      if (other == pivot) continue;
      const double factor = matrix[other][pivot] / matrix[pivot][pivot];
      for (std::size_t column = pivot; column <= size; ++column) {
        matrix[other][column] -= factor * matrix[pivot][column];
      }
    }
  }
  Vector solution(size);
  for (std::size_t index = 0; index < size; ++index) {
    solution[index] = matrix[index][size] / matrix[index][index];
  }
  return solution;
}

class Fit {
 public:
  Fit(const PublishedStudy& study, routing::RoutingCache& cache) : study_(study), cache_(cache) {}

  Outcome predict(const scenario::Scenario& scenario, const Vector& multipliers) const {
    EvaluateSettings settings;
    settings.calibration = calibration_of(study_.unknowns, multipliers);
    return evaluate(scenario, settings, cache_);
  }

  // Minimises the squared relative errors of the step time over `rows`.
  Vector run(const std::vector<const StudyRow*>& rows, Vector multipliers) const {
    if (multipliers.empty() || rows.empty()) return multipliers;
    for (int step = 0; step < gauss_newton_steps; ++step) {
      std::vector<Linear> linear;
      Vector residuals;
      for (const StudyRow* row : rows) {
        linear.push_back(linearise(*row, multipliers));
        residuals.push_back(1 - linear.back().value);
      }
      const Vector change = least_squares(linear, residuals);
      for (std::size_t index = 0; index < change.size(); ++index) {
        multipliers[index] += change[index];
      }
    }
    return multipliers;
  }

 private:
  Linear linearise(const StudyRow& row, const Vector& multipliers) const {
    const double published_ms = static_cast<double>(row.scenario.tokens_per_gpu) /
                                *row.published.tokens_per_s_per_gpu * 1e3;
    Linear linear;
    linear.value = predict(row.scenario, multipliers).step_ms / published_ms;
    for (std::size_t index = 0; index < multipliers.size(); ++index) {
      Vector moved = multipliers;
      moved[index] += probe;
      const double value = predict(row.scenario, moved).step_ms / published_ms;
      linear.slopes.push_back((value - linear.value) / probe);
    }
    return linear;
  }

  const PublishedStudy& study_;
  routing::RoutingCache& cache_;
};

void add(ErrorSummary& summary, double error) {
  summary.mean = (summary.mean * static_cast<double>(summary.rows) + std::abs(error)) /
                 static_cast<double>(summary.rows + 1);
  summary.worst = std::max(summary.worst, std::abs(error));
  ++summary.rows;
}

double speed_error(const StudyRow& row, double tokens_per_s) {
  return tokens_per_s / *row.published.tokens_per_s_per_gpu - 1;
}

void leave_one_out(const Fit& fit, const std::vector<const StudyRow*>& fitted,
                   StudyResult& result) {
  for (StudyRow& row : result.rows) {
    if (row.published.role != RowRole::fit) continue;
    std::vector<const StudyRow*> others;
    for (const StudyRow* other : fitted) {
      if (other != &row) others.push_back(other);
    }
    const Vector multipliers = fit.run(others, result.multipliers);
    row.left_out_error =
        speed_error(row, fit.predict(row.scenario, multipliers).tokens_per_s_per_gpu);
    add(result.leave_one_out, *row.left_out_error);
  }
}

std::vector<StudyRow> resolve_rows(const PublishedStudy& study,
                                   scenario::DocumentCache& documents) {
  std::vector<StudyRow> rows;
  for (const PublishedRow& published : study.rows) {
    scenario::OptionValues values = study.options;
    for (const auto& [name, text] : published.options) values[name] = text;
    StudyRow row;
    row.published = published;
    row.scenario = scenario::resolve(values, documents);
    rows.push_back(std::move(row));
  }
  return rows;
}

StudyRouting routing_of(const std::vector<StudyRow>& rows) {
  StudyRouting routing;
  for (const StudyRow& row : rows) {
    if (!row.scenario.has_moe()) continue;
    routing.jobs.push_back(row.scenario.routing_job());
    routing.replicas = std::max(routing.replicas, row.scenario.replicas);
  }
  return routing;
}

void fit_and_check(const PublishedStudy& study, const Fit& fit, StudyResult& result) {
  std::vector<const StudyRow*> fitted;
  for (const StudyRow& row : result.rows) {
    if (row.published.role == RowRole::fit) fitted.push_back(&row);
  }
  const Vector ones(study.unknowns.size(), 1.0);
  result.multipliers = fit.run(fitted, ones);
  for (StudyRow& row : result.rows) {
    row.uncalibrated_tokens_per_s = fit.predict(row.scenario, ones).tokens_per_s_per_gpu;
    row.outcome = fit.predict(row.scenario, result.multipliers);
    if (!row.published.tokens_per_s_per_gpu) continue;
    row.error = speed_error(row, row.outcome.tokens_per_s_per_gpu);
    if (row.published.role == RowRole::fit) add(result.in_sample, *row.error);
    if (row.published.role == RowRole::check) add(result.unfitted, *row.error);
    if (row.published.role == RowRole::excluded) add(result.excluded, *row.error);
  }
  leave_one_out(fit, fitted, result);
}

// Announces the routing of rows whose predictions `predict` makes.
void predict_together(const std::vector<StudyRow>& rows, routing::RoutingCache& cache,
                      const std::function<void()>& predict) {
  const StudyRouting routing = routing_of(rows);
  cache.announce(routing.jobs, routing.replicas);
  try {
    predict();
  } catch (...) {
    cache.forget(routing.jobs);
    throw;
  }
}

}  // namespace

StudyRouting routing_of(const PublishedStudy& study, scenario::DocumentCache& documents) {
  return routing_of(resolve_rows(study, documents));
}

std::vector<StudyRow> uncalibrated(const PublishedStudy& study, scenario::DocumentCache& documents,
                                   routing::RoutingCache& cache) {
  std::vector<StudyRow> rows = resolve_rows(study, documents);
  const Fit fit(study, cache);
  predict_together(rows, cache, [&] {
    for (StudyRow& row : rows) {
      row.outcome = fit.predict(row.scenario, Vector(study.unknowns.size(), 1.0));
      row.uncalibrated_tokens_per_s = row.outcome.tokens_per_s_per_gpu;
    }
  });
  return rows;
}

StudyResult calibrate(const PublishedStudy& study, scenario::DocumentCache& documents,
                      routing::RoutingCache& cache) {
  StudyResult result;
  result.rows = resolve_rows(study, documents);
  const Fit fit(study, cache);
  predict_together(result.rows, cache, [&] { fit_and_check(study, fit, result); });
  return result;
}

}  // namespace moesim::study
