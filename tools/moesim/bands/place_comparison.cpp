#include "tools/moesim/bands/place_comparison.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>

#include "sim/cluster/domain_links.hpp"
#include "sim/uncertainty/ratios/link_ratio.hpp"
#include "sim/uncertainty/steps/step_distance.hpp"
#include "tools/moesim/bands/train_band.hpp"

namespace moesim::tool {
namespace {

// "megatron-bridge": which software was measured on two machines.
std::string software_of_pairs() {
  std::set<std::string> names;
  for (const uncertainty::MachinePairs& group :
       study::published_errors().residuals().machine_ratios) {
    names.insert(group.software);
  }
  return fmt::format("{}", fmt::join(names, " or "));
}

}  // namespace

KnownRatio compare_machines(const std::string& software, const StepElsewhere& step,
                            const StepElsewhere& other) {
  const double precision = step.low_precision == other.low_precision
                               ? 0
                               : study::published_errors().residuals().components.precision;
  const double distance = uncertainty::share_distance(step.parts, other.parts);
  KnownRatio known;
  known.band = study::published_errors().machine_ratio_band(
      software, moves_between(step.moves, other.moves), distance,
      std::hypot(unmeasured_between(step.unmeasured, other.unmeasured),
                 precision * std::sqrt(2.0)));
  widen_by_hidden(step.unmeasured, other.unmeasured, known.band);
  const bool is_of_software = known.band.basis == uncertainty::Basis::software;
  known.known_by = fmt::format(
      "{} groups of pairs of machines that ran one release of {}, for steps whose parts have "
      "shares that differ by {:.0f} %{}",
      known.band.held_out, is_of_software ? software : software_of_pairs(), 100 * distance,
      is_of_software ? "" : ", wider, as another program is assumed to run on both");
  return known;
}

KnownRatio compare_clusters(const std::string& software, const StepElsewhere& step,
                            const cluster::Cluster& cluster, const StepElsewhere& other,
                            const cluster::Cluster& other_cluster, const std::string& same) {
  const double links =
      uncertainty::link_deviation({step.parts, step.exchanges}, {other.parts, other.exchanges},
                                  cluster::other_domain_links(cluster, other_cluster));
  KnownRatio known;
  if (step.all_but_machine == other.all_but_machine) {
    known.band.basis = uncertainty::Basis::software;
    known.band.levels = uncertainty::link_ratio_levels(links);
    widen_by_hidden(step.unmeasured, other.unmeasured, known.band);
    known.known_by = fmt::format(
        "the noise of two runs and the errors of exchanges ({:.1f} % of the step's time): {}",
        100 * links, same);
    return known;
  }
  const double distance = uncertainty::step_distance(step.parts, other.parts);
  known.band = study::published_errors().ratio_band(
      software, true, distance, unmeasured_between(step.unmeasured, other.unmeasured));
  uncertainty::widen_levels(links, known.band.levels);
  widen_by_hidden(step.unmeasured, other.unmeasured, known.band);
  known.known_by = fmt::format(
      "{} groups of pairs of steps on one machine, for steps that differ by {:.0f} % of their "
      "parts, and the errors of exchanges on two clusters ({:.1f} %)",
      known.band.held_out, 100 * distance, 100 * links);
  return known;
}

}  // namespace moesim::tool
