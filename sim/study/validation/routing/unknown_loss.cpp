#include "sim/study/validation/routing/unknown_loss.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "sim/base/statistics.hpp"
#include "sim/routing/scores/score_source.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/uncertainty/statistics/coverage.hpp"

namespace moesim::study {
namespace {

constexpr int replicas = 199;
constexpr std::int64_t tokens = 2048;  // their sampling noise is small beside the spreads
constexpr double levels[] = {0.5, 0.8, 0.9};

// The loss of a layer of each replica, [place in unknown_loss_factors][replica].
std::vector<std::vector<double>> drawn_losses(const RecordedLayers& layers,
                                              const std::string& source) {
  std::vector<routing::RoutingJob> jobs;
  for (const int hundredths : unknown_loss_factors) {
    routing::RoutingJob job;
    job.router.top_k = layers.top_k;
    job.router.capacity_factor =
        Decimal::parse(fmt::format("{:.2f}", hundredths / 100.0), "capacity_factor");
    job.router.capacity_convention = routing::CapacityConvention::library;
    job.router.priority = routing::Priority::position;  // every priority loses as many
    job.scores = routing::parse_score_source(source, "--routing");
    job.experts = layers.experts;
    job.gpus = 1;
    job.expert_parallel = 1;
    job.gpus_per_domain = 1;
    job.tokens_per_gpu = tokens;
    job.layers = 1;
    jobs.push_back(job);
  }
  std::vector<std::vector<double>> lost(jobs.size());
  for (int replica = 0; replica < replicas; ++replica) {
    const std::vector<routing::ReplicaRouting> routed = routing::simulate_routing(jobs, replica);
    for (std::size_t at = 0; at < jobs.size(); ++at) lost[at].push_back(routed[at].loss.failed);
  }
  return lost;
}

// The median of |recorded - median of the draws|.
double median_error(const std::vector<double>& recorded, const std::vector<double>& drawn) {
  const double middle = median(drawn);
  std::vector<double> errors;
  for (const double value : recorded) errors.push_back(std::abs(value - middle));
  return median(errors);
}

// "9, 13 and 14 of 15 inside the 50, 80 and 90 % bands, 10.1, 20.2 and 30.3 points wide"
std::string inside_text(const std::vector<double>& recorded, const std::vector<double>& drawn) {
  std::vector<std::string> inside, nominal, widths;
  for (const double level : levels) {
    const uncertainty::Interval band{quantile(drawn, (1 - level) / 2),
                                     quantile(drawn, (1 + level) / 2)};
    std::vector<uncertainty::Judged> judged;
    for (const double value : recorded) judged.push_back({value, band});
    const uncertainty::Coverage found = uncertainty::coverage_of(judged, level);
    inside.push_back(fmt::format("{:.0f}", found.inside * static_cast<double>(found.points)));
    nominal.push_back(fmt::format("{:.0f}", 100 * level));
    widths.push_back(fmt::format("{:.1f}", 100 * found.width));
  }
  return fmt::format("{} of {} layers inside the {} % bands, {} points wide",
                     fmt::join(inside, ", "), recorded.size(), fmt::join(nominal, ", "),
                     fmt::join(widths, ", "));
}

}  // namespace

void report_unknown_loss(const std::vector<RecordedLayers>& recorded, Validation& validation) {
  for (const RecordedLayers& layers : recorded) {
    const auto plain = drawn_losses(layers, "gaussian:0.1");
    for (const bool left_out : {false, true}) {
      const std::string source =
          layers.balance_loss != left_out ? std::string("unknown:0") : std::string("unknown:1");
      const auto drawn = drawn_losses(layers, source);
      for (std::size_t at = 0; at < drawn.size(); ++at) {
        std::vector<double> lost;
        for (const auto& layer : layers.lost) lost.push_back(layer.at(at));
        validation.verdicts.push_back(
            {"routing",
             fmt::format("{}, library CF {:.2f}, --routing {} ({}): {}; its median {:.1f} points "
                         "off in the median, that of gaussian:0.1 {:.1f}; repeats: none",
                         layers.name, unknown_loss_factors[at] / 100.0, source,
                         left_out ? "spreads of the others" : "spreads of these layers",
                         inside_text(lost, drawn[at]), 100 * median_error(lost, drawn[at]),
                         100 * median_error(lost, plain[at])),
             std::nullopt});
      }
    }
  }
}

}  // namespace moesim::study
