#include "sim/study/validation/training/calibrated_smartmoe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/routing/traces/trace_import.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/sweep/evaluate.hpp"
#include "sim/study/validation/training/smartmoe_rows.hpp"
#include "sim/uncertainty/software/step_fit.hpp"

namespace moesim::study {
namespace {

using routing::CountedPopularity;
using uncertainty::Unknown;

constexpr const char* study_name = "smartmoe-steps, calibrated";
// The timed iterations are the first ones; the archive has every 50th.
constexpr std::int64_t timed_iterations = 200;
constexpr std::size_t fitted_factors = 2;

using Popularity = std::shared_ptr<const CountedPopularity>;

// Shares of the routes of each of `layers` that went to each rank, at each recorded micro-batch of
// the iterations that were timed. The archive is of a deeper model (24 layers) with two experts a
// rank, the timed ones have one: layers are taken at the same depth, and experts by their rank, as
// what a rank gets decides the step. Empty: no archive.
std::vector<Popularity> recorded_popularities(const std::string& folder, int layers, int experts) {
  routing::ArrayQuery query;
  query.file = folder + "/smartmoe_routing_trace.npz";
  if (!std::filesystem::exists(query.file)) return {};
  query.array = "counts";
  query.axes = {"step", "rank", "layer", "micro-batch", "expert"};
  query.steps = "iterations";
  query.top_k = 2;
  const routing::ImportedTrace counts = routing::import_array(query);
  const routing::TraceShape& shape = counts.trace->shape();
  if (shape.experts % experts != 0) {
    throw Error(fmt::format("{}: expected a multiple of {} experts", query.file, experts));
  }
  const int merged = shape.experts / experts;
  std::vector<Popularity> result;
  for (std::size_t step = 0; step < counts.steps.size(); ++step) {
    if (counts.steps[step] > timed_iterations) continue;
    CountedPopularity::Layers popularity;
    for (int layer = 0; layer < layers; ++layer) {
      const int recorded = (2 * layer + 1) * shape.layers / (2 * layers);
      std::vector<double>& shares = popularity.emplace_back(experts);
      double routes = 0;
      for (int rank = 0; rank < shape.ranks; ++rank) {
        const auto of_rank = counts.trace->counts(static_cast<int>(step), rank, recorded);
        for (int expert = 0; expert < shape.experts; ++expert) {
          const auto count = static_cast<double>(of_rank[static_cast<std::size_t>(expert)]);
          shares[static_cast<std::size_t>(expert / merged)] += count;
          routes += count;
        }
      }
      for (double& share : shares) share /= routes;
    }
    result.push_back(std::make_shared<const CountedPopularity>(std::move(popularity)));
  }
  if (result.empty()) {
    throw Error(fmt::format("{}: expected an iteration up to {}", query.file, timed_iterations));
  }
  return result;
}

// The scenario of a row whose routing is known or drawn; a refusal otherwise.
SmartMoeRow with_routing(const CsvTable& table, std::size_t row, bool recorded) {
  SmartMoeRow mapped = smartmoe_row(table, row);
  const bool overlapped = table.text(row, "smart_sched") == "ON";
  if (!has_no_capacity(table, row)) {
    mapped.options["routing"] = "unknown";
    mapped.options["replicas"] = "16";
    return mapped;
  }
  if (table.text(row, "pp") != "1" || overlapped) return mapped;
  mapped.options.erase("capacity-factor");
  mapped.options.erase("capacity-convention");
  mapped.options.erase("priority");
  if (table.text(row, "system") == "deepspeed") {
    // It keeps all routes and pads each expert to the busiest one.
    mapped.options["padding"] = "busiest";
    mapped.options["routing"] = "unknown";
    mapped.options["replicas"] = "16";
    mapped.refusal = "";
  } else if (recorded) {
    mapped.options["router"] = "dropless";
    mapped.options["top-k"] = table.text(row, "topk");
    mapped.options["replicas"] = "1";  // of each recorded micro-batch
    mapped.options.erase("padding");
    mapped.refusal = "";
  }
  return mapped;
}

struct Measured {
  std::string subject;
  uncertainty::MeasuredRow step;
};

uncertainty::StepClasses classes_of(const Outcome& outcome) {
  const double exchange = outcome.exchange_and_waiting_ms;
  return {outcome.step_ms - exchange, exchange};
}

// The median of the steps by total; of an even number the mean of the two in the middle.
uncertainty::StepClasses median_of(std::vector<uncertainty::StepClasses> steps) {
  std::sort(steps.begin(), steps.end(),
            [](const auto& one, const auto& other) { return one.total() < other.total(); });
  const uncertainty::StepClasses& low = steps[(steps.size() - 1) / 2];
  const uncertainty::StepClasses& high = steps[steps.size() / 2];
  return {(low.compute + high.compute) / 2, (low.exchange + high.exchange) / 2};
}

// What a step takes; with `recorded` the median of those routed as each of `popularities`.
uncertainty::StepClasses simulated(const scenario::Scenario& scenario, bool recorded,
                                   const std::vector<Popularity>& popularities,
                                   routing::RoutingCache& cache) {
  if (!recorded) return classes_of(evaluate(scenario, cache));
  std::vector<uncertainty::StepClasses> steps;
  for (const Popularity& popularity : popularities) {
    scenario::Scenario as_recorded = scenario;
    as_recorded.scores = routing::ScoreSource{};
    as_recorded.scores.kind = routing::ScoreSource::Kind::counts;
    as_recorded.scores.popularity = popularity;
    as_recorded.scores.file = "smartmoe_routing_trace.npz";
    steps.push_back(classes_of(evaluate(as_recorded, cache)));
  }
  return median_of(std::move(steps));
}

// A factor on each class, of which nothing is known before: to a factor of e.
uncertainty::SoftwarePrior open_prior() {
  uncertainty::SoftwarePrior prior;
  prior.deviation = {1, 1, 0, 0};
  prior.scatter.front() = 0.05;
  return prior;
}

// How many times as long the second step takes.
double growth(double from, double to) { return to / from; }

void report(const std::string& system, const std::vector<Measured>& steps, Validation& validation) {
  const std::vector<Unknown> free = {Unknown::level, Unknown::exchange};
  std::vector<uncertainty::MeasuredRow> rows;
  for (const Measured& each : steps) rows.push_back(each.step);
  if (rows.size() <= fitted_factors) return;
  const uncertainty::StepFit fit = uncertainty::fit_steps(rows, free, open_prior());
  const std::vector<double> left_out = uncertainty::left_out_errors(rows, free, open_prior());
  double sum = 0;
  double left_out_sum = 0;
  double worst = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const double predicted = uncertainty::scaled_ms(rows[row].predicted, fit.unknowns);
    const double error = predicted / rows[row].measured_ms - 1;
    const double without = std::exp(-left_out[row]) - 1;
    validation.rows.push_back(
        {study_name, steps[row].subject, "fit", "ms", rows[row].measured_ms, predicted, error,
         without,
         fmt::format("not fitted {:.0f} ms, exchange and waiting {:.0f} of them",
                     rows[row].predicted.total(), rows[row].predicted.exchange)});
    sum += std::abs(error);
    left_out_sum += std::abs(without);
    worst = std::max(worst, std::abs(without));
  }
  const auto count = static_cast<double>(rows.size());
  const auto smallest = std::min_element(rows.begin(), rows.end(), [](auto& one, auto& other) {
    return one.measured_ms < other.measured_ms;
  });
  const auto largest = std::max_element(rows.begin(), rows.end(), [](auto& one, auto& other) {
    return one.measured_ms < other.measured_ms;
  });
  validation.verdicts.push_back(
      {study_name,
       fmt::format(
           "{}: computation takes {:.2f} times, exchanges and waiting {:.2f} times as long as "
           "simulated, fitted to {} steps: {:.1f} % off on average, {:.1f} % with each step "
           "left out ({:.0f} % at worst); from the fastest to the slowest step the time "
           "grows {:.2f} times, not fitted {:.2f}, fitted {:.2f} times",
           system, std::exp(fit.unknowns[at(Unknown::level)]),
           std::exp(fit.unknowns[at(Unknown::level)] + fit.unknowns[at(Unknown::exchange)]),
           rows.size(), sum / count * 100, left_out_sum / count * 100, worst * 100,
           growth(smallest->measured_ms, largest->measured_ms),
           growth(smallest->predicted.total(), largest->predicted.total()),
           growth(uncertainty::scaled_ms(smallest->predicted, fit.unknowns),
                  uncertainty::scaled_ms(largest->predicted, fit.unknowns))),
       std::nullopt});
}

}  // namespace

void add_calibrated_smartmoe(const std::string& folder, const CsvTable& table,
                             scenario::DocumentCache& documents, routing::RoutingCache& cache,
                             Validation& validation) {
  constexpr int layers = 16;
  constexpr int experts = 16;
  const std::vector<Popularity> popularities = recorded_popularities(folder, layers, experts);
  std::map<std::string, std::vector<Measured>> by_system;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const SmartMoeRow mapped = with_routing(table, row, !popularities.empty());
    if (!mapped.refusal.empty()) continue;  // said by validate_steps()
    const scenario::Scenario scenario = scenario::resolve(mapped.options, documents);
    const bool recorded = mapped.options.at("router") == "dropless";
    by_system[table.text(row, "system")].push_back(
        {mapped.subject,
         {simulated(scenario, recorded, popularities, cache), table.positive(row, "median_ms")}});
  }
  for (const auto& [system, steps] : by_system) report(system, steps, validation);
}

}  // namespace moesim::study
