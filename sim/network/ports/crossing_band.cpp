#include "sim/network/ports/crossing_band.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
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

// How far a band reaches to an algorithm that takes so many times as long: NCCL chooses by a model
// of its own, which is off by a third now and then, hardly by two (assumed).
double share_of_choice(double times) {
  constexpr double likely = 1.3;
  constexpr double never = 1.8;
  return std::clamp((never - times) / (never - likely), 0.0, 1.0);
}

double of_law_us(const NicFigures& nics, double time_us) {
  return nics.start.value == 0 ? 0 : law_error * time_us;
}

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

PortModel::Crossed PortModel::Law::fastest(double inside_us, double efficiency,
                                           double start) const {
  Crossed best;
  for (const CrossingPlan& plan :
       crossing_plans(load, {costs.latency_us, start, costs.switch_reduces})) {
    const double nic_us = stream_us(plan, efficiency);
    const double time_us = part.time_with(plan, inside_us, nic_us);
    if (best.estimate.time_us > 0 && time_us >= best.estimate.time_us) continue;
    best.estimate.time_us = time_us;
    best.algorithm = plan.name;
    best.inside_us = inside_us;
    best.start_us = plan.start_us;
    best.stream_us = nic_us;
    best.nic_share = plan.share;
  }
  return best;
}

double PortModel::Law::later_us(const Crossed& crossed, double inside_us, double efficiency,
                                double start) const {
  return fastest(inside_us, efficiency, start).estimate.time_us - crossed.estimate.time_us;
}

// What algorithms other than the fastest add to the upper end of a band.
struct PortModel::Law::Others {
  double slower_nics_us = 0;  // where the NICs are slow, the fastest one's time included
  double longer_us = 0;       // where they are as expected
  const char* name = "";      // the one that takes `longer_us`
};

// Other algorithms than `chosen`, also those without a switch that reduces. `slower_nics_us`: what
// the fastest takes longer with slow NICs.
PortModel::Law::Others PortModel::Law::others(const Crossed& chosen, const NicFigures& nics,
                                              double slower_nics_us) const {
  Others found{slower_nics_us};
  if (load.kind != Collective::all_reduce) return found;
  const double time_us = chosen.estimate.time_us;
  for (const bool reduces : {costs.switch_reduces, false}) {
    for (const CrossingPlan& plan :
         crossing_plans(load, {costs.latency_us, costs.start, reduces})) {
      if (plan.name == std::string_view(chosen.algorithm)) continue;
      const auto time_at = [&](double efficiency) {
        return part.time_with(plan, part.time.time_us, stream_us(plan, efficiency));
      };
      const double other_us = time_at(nics.value);
      const double share = share_of_choice(other_us / time_us);
      found.slower_nics_us =
          std::max(found.slower_nics_us, share * (time_at(nics.least) - other_us));
      if (share * (other_us - time_us) <= found.longer_us) continue;
      found.longer_us = share * (other_us - time_us);
      found.name = plan.name;
    }
  }
  return found;
}

PortModel::Crossed PortModel::Law::with_upper_end(const NicFigures& nics) const {
  Crossed crossed = fastest(part.time.time_us, nics.value, nics.start.value);
  const double time_us = crossed.estimate.time_us;
  const cluster::NicStart& start = nics.start;
  const Others other =
      others(crossed, nics, later_us(crossed, part.time.time_us, nics.least, start.value));
  crossed.next = other.name;
  crossed.estimate.time_us_p95 =
      time_us + root_of_squares({later_us(crossed, part.time.time_us_p95, nics.value, start.value),
                                 other.slower_nics_us,
                                 later_us(crossed, part.time.time_us, nics.value, start.high),
                                 of_law_us(nics, time_us), other.longer_us});
  return crossed;
}

std::vector<PortModel::Law> PortModel::Law::easier() const {
  constexpr int per_octave = 32;  // fine enough for the peak between two of them: 0.2 %
  constexpr int octaves = 2;
  std::vector<Law> laws;
  for (int step = 1; step <= octaves * per_octave; ++step) {
    laws.push_back(*this);
    laws.back().nic_rate *= std::exp2(static_cast<double>(step) / per_octave);
  }
  const double apart = std::exp2(1.0 / 8);
  int before = load.domains;
  for (double fewer = load.domains / apart; before > 2; fewer /= apart) {
    const int domains = std::max(2, static_cast<int>(std::lround(fewer)));
    if (domains == before) continue;
    laws.push_back(*this);
    laws.back().load = among(domains);
    before = domains;
  }
  return laws;
}

CrossingLoad PortModel::Law::among(int domains) const {
  CrossingLoad fewer = load;
  const auto passed = [](double ranks) { return (ranks - 1) / ranks; };
  fewer.ranks = std::max(domains, load.ranks / load.domains * domains);
  fewer.domains = domains;
  fewer.nic_bytes *= passed(fewer.ranks) / passed(load.ranks);
  fewer.tree_nic_bytes *= tree_turns(domains) / tree_turns(load.domains);
  return fewer;
}

bool PortModel::Law::has_choice() const {
  return load.kind == Collective::all_reduce && costs.start != 0;
}

PortModel::Crossed PortModel::Law::with_band(const NicFigures& nics) const {
  Crossed crossed = with_upper_end(nics);
  const double time_us = crossed.estimate.time_us;
  if (has_choice()) {
    for (const Law& law : easier()) {
      const Crossed other = law.with_upper_end(nics);
      if (other.estimate.time_us_p95 <= crossed.estimate.time_us_p95) continue;
      crossed.estimate.time_us_p95 = other.estimate.time_us_p95;
      if (*crossed.next == 0) crossed.next = other.next;
    }
  }
  const cluster::NicStart& start = nics.start;
  crossed.estimate.time_us_p05 =
      time_us - root_of_squares({later_us(crossed, part.time.time_us_p05, nics.value, start.value),
                                 later_us(crossed, part.time.time_us, nics.most, start.value),
                                 later_us(crossed, part.time.time_us, nics.value, start.low),
                                 of_law_us(nics, time_us)});
  // Whatever the software, the bytes pass the NICs.
  const double least_us = crossed.stream_us * crossed.nic_share * nics.value / nics.most;
  crossed.estimate.time_us_p05 =
      std::max(crossed.estimate.time_us_p05, std::min(least_us, time_us));
  return crossed;
}

}  // namespace moesim::network
