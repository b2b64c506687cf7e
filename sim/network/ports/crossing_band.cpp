#include "sim/network/ports/crossing_band.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string_view>

namespace moesim::network {

using profile::Collective;

namespace {

// The quantiles of the NICs' efficiency where nobody measured it, over its value: those of the
// shipped clusters, which assume 0.95 and 0.7 to 1.
constexpr double assumed_least = 0.7 / 0.95;
constexpr double assumed_most = 1 / 0.95;

double root_of_squares(std::initializer_list<double> parts) {
  double sum = 0;
  for (const double part : parts) sum += part * part;
  return std::sqrt(sum);
}

// What an algorithm other than the fastest takes longer at most, as a share of its time: NCCL
// chooses by a model of its own, which is off by a third now and then (assumed), and so chooses
// none that takes longer than this.
constexpr double most_regret = 0.3;

double of_law_us(const NicFigures& nics, double time_us) {
  return nics.start.value == 0 ? 0 : law_error * time_us;
}

// What the bytes on a NIC take longer where it reaches its low end, as a share.
double slower_share(const NicFigures& nics) { return nics.value / nics.least - 1; }

}  // namespace

NicFigures figures_of(const cluster::Cluster& cluster) {
  return {cluster.nic_efficiency, cluster.nic_efficiency_low, cluster.nic_efficiency_high,
          cluster.nic_start};
}

NicFigures as_unmeasured(NicFigures nics) {
  const cluster::NicStart assumed;
  nics.least = std::min(nics.least, nics.value * assumed_least);
  nics.most = std::max(nics.most, nics.value * assumed_most);
  nics.start.low = std::min(nics.start.low, nics.start.value * assumed.low);
  nics.start.high = std::max(nics.start.high, nics.start.value * assumed.high);
  return nics;
}

double PortModel::Inside::time_with(const CrossingPlan& plan, double inside_us,
                                    double stream_us) const {
  const double first_us = std::min(smallest_us, inside_us);
  const double steps_us = plan.beside == Beside::steps ? plan.inside_steps_us : first_us;
  const double longer_us = std::max(stream_us, (inside_us - steps_us) * plan.inside_bytes);
  switch (plan.beside) {
    case Beside::after:
      return plan.start_us + (pcie ? first_us + longer_us : inside_us + stream_us);
    case Beside::stream:
      return plan.start_us + first_us + longer_us;
    case Beside::steps:
      return plan.start_us + longer_us;
    case Beside::together:
      break;
  }
  return std::max(inside_us, plan.start_us + stream_us);
}

double PortModel::Law::stream_us(const CrossingPlan& plan, double efficiency) const {
  return std::max(plan.nic_bytes / (nic_rate * efficiency * plan.share), plan.least_us);
}

double PortModel::Law::time_us(const CrossingPlan& plan, double inside_us,
                               double efficiency) const {
  return part.time_with(plan, inside_us, stream_us(plan, efficiency));
}

std::vector<CrossingPlan> PortModel::Law::plans(double start, bool switch_reduces) const {
  return crossing_plans(load, {costs.latency_us, costs.start == 0 ? 0 : start, switch_reduces});
}

PortModel::Crossed PortModel::Law::fastest(const std::vector<CrossingPlan>& of,
                                           double efficiency) const {
  Crossed best;
  for (const CrossingPlan& plan : of) {
    const double time_us = this->time_us(plan, part.time.time_us, efficiency);
    if (best.estimate.time_us > 0 && time_us >= best.estimate.time_us) continue;
    best.estimate.time_us = time_us;
    best.algorithm = plan.name;
    best.inside_us = part.time.time_us;
    best.start_us = plan.start_us;
    best.stream_us = stream_us(plan, efficiency);
    best.nic_share = plan.share;
  }
  return best;
}

// Of all plans, also those without a switch that reduces; of the fastest the NICs alone.
PortModel::Law::Others PortModel::Law::others(const Crossed& chosen, const NicFigures& nics) const {
  Others found;
  if (load.kind != Collective::all_reduce) return found;
  const double fastest_us = chosen.estimate.time_us;
  const double most_us = (1 + most_regret) * fastest_us;
  double named_us = 0;
  for (const bool reduces : {costs.switch_reduces, false}) {
    for (const CrossingPlan& plan : plans(nics.start.value, reduces)) {
      const double plan_us = time_us(plan, part.time.time_us, nics.value);
      if (plan.least_us == 0) {  // LL has a limit of its own, and is not taken for many bytes
        const double slower_us = time_us(plan, part.time.time_us, nics.least) - plan_us;
        found.slower_nics_us =
            std::max(found.slower_nics_us, std::min(slower_us, slower_share(nics) * most_us));
      }
      found.longer_us = std::max(found.longer_us, std::min(plan_us, most_us) - fastest_us);
      if (plan.name == std::string_view(chosen.algorithm)) continue;
      const bool is_nearer = std::abs(plan_us - most_us) < std::abs(named_us - most_us);
      if (*found.name != 0 && !is_nearer) continue;
      named_us = plan_us;
      found.name = plan.name;
    }
  }
  return found;
}

// NCCL takes the plan that turns out fastest, so both ends are those of the plans' ends that come
// first. The ends of each rise with bytes, slower links and more domains, as what it takes longer
// or shorter grows with them, and so do the first of them.
PortModel::Crossed PortModel::Law::with_band(const NicFigures& nics) const {
  const std::vector<CrossingPlan> expected = plans(nics.start.value, costs.switch_reduces);
  const std::vector<CrossingPlan> early = plans(nics.start.low, costs.switch_reduces);
  const std::vector<CrossingPlan> late = plans(nics.start.high, costs.switch_reduces);
  Crossed crossed = fastest(expected, nics.value);
  const Others other = others(crossed, nics);
  crossed.next = other.name;
  double first_us = std::numeric_limits<double>::infinity();
  double last_us = std::numeric_limits<double>::infinity();
  for (std::size_t number = 0; number < expected.size(); ++number) {
    const CrossingPlan& plan = expected[number];
    const double inside_us = part.time.time_us;
    const double plan_us = time_us(plan, inside_us, nics.value);
    const double of_law = of_law_us(nics, plan_us);
    last_us = std::min(
        last_us,
        plan_us +
            root_of_squares(
                {time_us(plan, part.time.time_us_p95, nics.value) - plan_us,
                 std::max(time_us(plan, inside_us, nics.least) - plan_us, other.slower_nics_us),
                 time_us(late[number], inside_us, nics.value) - plan_us, of_law, other.longer_us}));
    // Whatever the software, the bytes pass the NICs.
    const double on_nics_us = stream_us(plan, nics.value) * plan.share * nics.value / nics.most;
    first_us = std::min(
        first_us,
        std::max(plan_us - root_of_squares(
                               {time_us(plan, part.time.time_us_p05, nics.value) - plan_us,
                                time_us(plan, inside_us, nics.most) - plan_us,
                                time_us(early[number], inside_us, nics.value) - plan_us, of_law}),
                 std::min(on_nics_us, plan_us)));
  }
  crossed.estimate.time_us_p05 = first_us;
  crossed.estimate.time_us_p95 = last_us;
  return crossed;
}

}  // namespace moesim::network
