#include "tools/moesim/calibrate/calibrate_hosts.hpp"

#include <algorithm>
#include <cmath>

#include "sim/base/parallel.hpp"

namespace moesim::tool {
namespace {

using uncertainty::Unknown;

void price(std::vector<CalibrationRow>& rows, const std::vector<double>& factors) {
  std::vector<std::vector<uncertainty::StepClasses>> priced(
      rows.size(), std::vector<uncertainty::StepClasses>(factors.size()));
  parallel_for(rows.size() * factors.size(), core_count(), [&](std::size_t index) {
    const CalibrationRow& row = rows[index / factors.size()];
    const std::size_t place = index % factors.size();
    if (!row.prediction.with_host || row.step.hosts.has(factors[place])) return;
    priced[index / factors.size()][place] = row.prediction.with_host(factors[place]);
  });
  for (std::size_t row = 0; row < rows.size(); ++row) {
    uncertainty::HostCurve& hosts = rows[row].step.hosts;
    if (!rows[row].prediction.with_host) continue;
    for (std::size_t place = 0; place < factors.size(); ++place) {
      if (!hosts.has(factors[place])) hosts.add(factors[place], priced[row][place]);
    }
  }
}

}  // namespace

void price_hosts(std::vector<CalibrationRow>& rows) {
  price(rows, {uncertainty::host_factors.begin(), uncertainty::host_factors.end()});
}

std::vector<uncertainty::MeasuredRow> steps_of(const std::vector<CalibrationRow>& rows) {
  std::vector<uncertainty::MeasuredRow> steps;
  for (const CalibrationRow& row : rows) steps.push_back(row.step);
  return steps;
}

uncertainty::StepFit fit_with_hosts(std::vector<CalibrationRow>& rows,
                                    const std::vector<Unknown>& free,
                                    const uncertainty::SoftwarePrior& prior) {
  constexpr int most_rounds = 3;
  constexpr double beside = 1.1;  // how far apart prices are around the fitted factor
  constexpr double settled = 0.005;
  uncertainty::StepFit fit = uncertainty::fit_steps(steps_of(rows), free, prior);
  if (std::find(free.begin(), free.end(), Unknown::host) == free.end()) return fit;
  for (int round = 0; round < most_rounds; ++round) {
    const double before = fit.unknowns[static_cast<std::size_t>(Unknown::host)];
    price(rows, {std::exp(before) / beside, std::exp(before), std::exp(before) * beside});
    fit = uncertainty::fit_steps(steps_of(rows), free, prior);
    const double after = fit.unknowns[static_cast<std::size_t>(Unknown::host)];
    if (std::abs(after - before) < settled) break;
  }
  return fit;
}

}  // namespace moesim::tool
