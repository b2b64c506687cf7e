#include "kernels/measure/sessions/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "sim/base/error.hpp"

namespace moesim::kernels::measure {
namespace {

// Shares of the peak rates that kernels usually reach: for estimates of time only.
constexpr double usual_share = 0.6;
constexpr double launch_s = 5e-6;
constexpr double submit_s = 40e-6;  // flush, events, synchronisation on the host's side
constexpr double prepare_s = 0.03;
constexpr double usual_samples = 46;  // 30, and one more judgement
constexpr double usual_hot_samples = 15;

bool wanted(const PointSpec& spec, const std::vector<std::string>& words) {
  // Words are matched whole, so that m=1 does not choose m=16.
  const std::string label = " " + spec.label() + " ";
  return std::all_of(words.begin(), words.end(), [&label](const std::string& word) {
    return label.find(" " + word + " ") != std::string::npos;
  });
}

bool asked(const Selection& selection, const std::string& name) {
  const auto& names = selection.suites;
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

double estimate_seconds(const PointSpec& spec, const Rates& rates, const TrialOptions& options) {
  const double once =
      launch_s + std::max({spec.flops / (usual_share * rates.peak_flops),
                           spec.bytes / (usual_share * rates.memory_bytes_per_second),
                           spec.sent_bytes / (usual_share * rates.link_bytes_per_second)});
  // Twice the L2 filled, twice the L2 read.
  const double flush = 4 * rates.l2_bytes / (usual_share * rates.memory_bytes_per_second);
  const double cold = static_cast<double>(spec.calls) * once + flush + submit_s;
  const double warm_up = std::max(
      {options.warm_up.least_s, spec.heat_s, static_cast<double>(options.warm_up.fewest) * cold});
  const double hot =
      spec.collective ? 0 : usual_hot_samples * std::max(options.hot_sample_us * 1e-6, once);
  const double prepare =
      prepare_s + spec.prepare_s + spec.held_bytes / rates.memory_bytes_per_second;
  return prepare + 2 * once + warm_up + usual_samples * cold + hot;
}

double Plan::seconds() const {
  double sum = 0;
  for (const Planned& planned : points) sum += planned.seconds;
  return sum;
}

Plan make_plan(const Selection& selection, std::uint64_t seed, const Rates& rates) {
  for (const std::string& name : selection.suites) find_suite(name);
  Plan plan;
  const TrialOptions usual;
  for (const Suite& suite : all_suites()) {
    if (!asked(selection, suite.name)) continue;
    if (selection.gpus < suite.fewest_gpus) {
      plan.missing.push_back(
          {suite.name, "one GPU alone exchanges nothing: a copy on the device is no communication",
           "run it on a node with at least 2 GPUs"});
      continue;
    }
    std::vector<PointSpec> points = suite.points({selection.gpus, selection.nodes});
    std::erase_if(points, [&](const PointSpec& spec) { return !wanted(spec, selection.only); });
    for (const std::size_t index : shuffled_order(points.size(), seed)) {
      plan.points.push_back(
          {suite.name, points[index], estimate_seconds(points[index], rates, usual)});
    }
  }
  if (plan.points.empty() && plan.missing.empty()) {
    throw UsageError(fmt::format(
        "--only '{}' leaves nothing to measure: words are matched whole against the labels that "
        "--dry-run prints, such as 'gemm' or 'm=128'",
        fmt::join(selection.only, " ")));
  }
  return plan;
}

}  // namespace moesim::kernels::measure
