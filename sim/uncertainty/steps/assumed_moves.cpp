#include "sim/uncertainty/steps/assumed_moves.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/base/statistics.hpp"
#include "sim/cluster/measured_between.hpp"
#include "sim/training/step/layer_time.hpp"
#include "sim/uncertainty/steps/assumed_deviations.hpp"

namespace moesim::uncertainty {
namespace {

constexpr double twice = 2;

double crossing_share(const training::TrainingJob& job, const training::TrainingStep& step) {
  if (cluster::measured_between_domains(*job.cluster)) return 0;
  const auto crossing = training::crossing_parts(job);
  double sum_us = 0;
  for (std::size_t part = 0; part < crossing.size(); ++part) {
    if (crossing[part]) sum_us += step.parts[part];
  }
  return sum_us / step.step_us;
}

}  // namespace

AssumedMoves moves_of(const training::TrainingJob& job, const training::TrainingStep& step,
                      std::shared_ptr<const training::DrawnLoads> loads) {
  const double crossing = crossing_share(job, step);
  const training::HostMoves host =
      step.host_moves ? *step.host_moves : training::host_moves(job, step, std::move(loads));
  return {host.slower, host.faster, crossing};
}

AssumedMoves mean_of(const std::vector<AssumedMoves>& all) {
  AssumedMoves mean;
  const auto count = static_cast<double>(std::max<std::size_t>(1, all.size()));
  for (const AssumedMoves& each : all) {
    mean.host_slower += each.host_slower / count;
    mean.host_faster += each.host_faster / count;
    mean.crossing += each.crossing / count;
  }
  return mean;
}

AssumedMoves beyond(const AssumedMoves& moves, const AssumedMoves& known) {
  return {std::max(0.0, moves.host_slower - known.host_slower),
          std::max(0.0, moves.host_faster - known.host_faster),
          std::max(0.0, moves.crossing - known.crossing)};
}

AssumedMoves moves_between(const AssumedMoves& one, const AssumedMoves& other) {
  return {std::abs(one.host_slower - other.host_slower),
          std::abs(one.host_faster - other.host_faster), std::hypot(one.crossing, other.crossing)};
}

MovedEnds moved_ends(const AssumedMoves& moves, double level) {
  const double deviations = normal_quantile((1 + level) / 2);
  const double host = deviations * host_deviation / std::log(twice);
  const double law = deviations * crossing_deviation;
  const auto exchanges = [&](double off) {
    return std::abs(std::log1p(moves.crossing * std::expm1(off)));
  };
  return {std::hypot(host * moves.host_faster, exchanges(-law)),
          std::hypot(host * moves.host_slower, exchanges(law))};
}

}  // namespace moesim::uncertainty
