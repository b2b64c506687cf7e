#include "sim/study/validation/routing/validate_routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/routing/traces/trace_import.hpp"
#include "sim/study/validation/routing/unknown_loss.hpp"

namespace moesim::study {
namespace {

using routing::RoutingJob;

constexpr const char* study_name = "routing";
constexpr int draws = 199;
constexpr double mean_error_bar = 0.05;  // percentage points
constexpr double rounding = 1e-12;       // of a share, summed in doubles in another order

std::string path_of(const std::string& folder, const std::string& file) {
  return (std::filesystem::path(folder) / file).string();
}

bool is_there(const std::string& folder, const std::string& file) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path_of(folder, file), ignored);
}

RoutingJob job_of(int experts, int top_k, std::int64_t tokens, const std::string& factor) {
  RoutingJob job;
  job.router.top_k = top_k;
  job.router.capacity_factor = Decimal::parse(factor, "capacity_factor");
  job.router.capacity_convention = routing::CapacityConvention::library;
  job.router.priority = routing::Priority::position;  // every priority loses as many
  job.experts = experts;
  job.gpus = 1;
  job.expert_parallel = 1;
  job.gpus_per_domain = 1;
  job.tokens_per_gpu = tokens;
  job.layers = 1;
  return job;
}

constexpr const char* random_table = "routing_bench_drop_rate.csv";

ValidationRow row_of(std::string subject, double measured, double predicted, std::string note) {
  return {study_name,      std::move(subject), "check",      "% lost",       100 * measured,
          100 * predicted, std::nullopt,       std::nullopt, std::move(note)};
}

void add_random(const std::string& folder, routing::RoutingCache& cache, Validation& validation) {
  const CsvTable table = CsvTable::load(path_of(folder, random_table));
  const std::vector<RoutingJob> jobs = random_draw_jobs(folder);
  std::size_t inside = 0;
  double error = 0;
  for (std::size_t row = 0; row < jobs.size(); ++row) {
    std::vector<double> lost;
    for (const routing::LayerRouting& layer : cache.get(jobs[row], 0)->layers) {
      lost.push_back(layer.loss.failed);
    }
    const auto [least, most] = std::minmax_element(lost.begin(), lost.end());
    const double mean = std::accumulate(lost.begin(), lost.end(), 0.0) / draws;
    const double measured = table.number(row, "avg_drop_rate");
    const bool fits = measured >= *least && measured <= *most;
    inside += fits ? 1 : 0;
    error += 100 * (mean - measured) / static_cast<double>(jobs.size());
    validation.rows.push_back(
        row_of(fmt::format("random, {} experts, top {}, library CF {}", jobs[row].experts,
                           jobs[row].router.top_k, jobs[row].router.capacity_factor.text()),
               measured, mean,
               fmt::format("99 % of draws in {:.3f} to {:.3f}{}", 100 * *least, 100 * *most,
                           fits ? "" : ": OUTSIDE")));
  }
  validation.verdicts.push_back(
      {study_name,
       fmt::format("random logits: {} of {} rows inside their 99 % sampling interval (bar: all)",
                   inside, jobs.size()),
       inside == jobs.size()});
  validation.verdicts.push_back(
      {study_name,
       fmt::format("random logits: mean signed error {:+.4f} percentage points (bar {:.2f})", error,
                   mean_error_bar),
       std::abs(error) <= mean_error_bar});
}

// Lost of all routes of the layers `first` to before `end` of one step, counted without the router:
// slots are ceil(factor k tokens / experts) per rank and expert, the factor in hundredths.
double counted_directly(const routing::Trace& trace, int step, int first, int end,
                        std::int64_t hundredths) {
  const routing::TraceShape& shape = trace.shape();
  const std::int64_t whole = 100 * std::int64_t{shape.experts};
  const std::int64_t slots = (hundredths * shape.top_k * shape.tokens + whole - 1) / whole;
  std::int64_t over = 0, all = 0;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    for (int layer = first; layer < end; ++layer) {
      for (const std::int64_t count : trace.counts(step, rank, layer)) {
        over += count > slots ? count - slots : 0;
        all += count;
      }
    }
  }
  return static_cast<double>(over) / static_cast<double>(all);
}

// Adds what each layer of one step loses.
void add_layers(const routing::Trace& trace, int step, RecordedLayers& layers) {
  layers.experts = trace.shape().experts;
  layers.top_k = trace.shape().top_k;
  for (int layer = 0; layer < trace.shape().layers; ++layer) {
    std::vector<double>& lost = layers.lost.emplace_back();
    for (const int hundredths : unknown_loss_factors) {
      lost.push_back(counted_directly(trace, step, layer, layer + 1, hundredths));
    }
  }
}

constexpr std::int64_t factors[] = {100, 125, 150, 200};  // library, in hundredths

double as_factor(std::int64_t hundredths) { return static_cast<double>(hundredths) / 100; }

// What the simulator loses of one step of recorded counts, at each of the factors.
std::vector<double> simulated(const std::shared_ptr<const routing::Trace>& trace, int step) {
  const routing::TraceShape& shape = trace->shape();
  std::vector<RoutingJob> jobs;
  for (const std::int64_t hundredths : factors) {
    RoutingJob job = job_of(shape.experts, shape.top_k, shape.tokens,
                            fmt::format("{:.2f}", as_factor(hundredths)));
    job.scores.kind = routing::ScoreSource::Kind::trace;
    job.scores.file = trace->file();
    job.scores.trace = trace;
    job.gpus = shape.ranks;
    job.layers = shape.layers;
    jobs.push_back(job);
  }
  std::vector<double> lost;
  for (const routing::ReplicaRouting& routed : routing::simulate_routing(jobs, step)) {
    lost.push_back(routed.loss.failed);
  }
  return lost;
}

// All recorded counts together.
struct Counted {
  int cases = 0;
  double worst = 0;  // |simulated - counted|
};

// Adds a row per factor; the simulated shares.
std::vector<double> add_counted(const std::string& subject,
                                const std::shared_ptr<const routing::Trace>& trace, int step,
                                Validation& validation, Counted& all) {
  std::vector<double> lost = simulated(trace, step);
  for (std::size_t at = 0; at < lost.size(); ++at) {
    const double counted = counted_directly(*trace, step, 0, trace->shape().layers, factors[at]);
    validation.rows.push_back(
        row_of(fmt::format("{}, library CF {:.2f}", subject, as_factor(factors[at])), counted,
               lost[at], "counted directly"));
    all.worst = std::max(all.worst, std::abs(lost[at] - counted));
    ++all.cases;
  }
  return lost;
}

// Muennighoff et al. 2024, layers 0, 7 and 15 on c4: percent lost at the first two factors.
constexpr double published_on_c4[] = {15.1, 7.3};

routing::ImportedTrace olmoe_counts(const std::string& folder, const std::string& model,
                                    const std::string& domain) {
  return routing::import_count_table({path_of(folder, "expert_counts.csv"),
                                      {{"model", model}, {"kind", "topk"}, {"domain", domain}},
                                      64,
                                      8});
}

constexpr const char* olmoe = "OLMoE-1B-7B-0924";

// `layers` receives those of all texts and of the models tuned from it, as far as they are there.
void add_olmoe(const std::string& folder, Validation& validation, Counted& all,
               RecordedLayers& layers) {
  for (const char* domain : {"c4", "book", "tulu"}) {
    const routing::ImportedTrace counts = olmoe_counts(folder, olmoe, domain);
    add_layers(*counts.trace, 0, layers);
    const std::vector<double> lost =
        add_counted(fmt::format("OLMoE on {}", domain), counts.trace, 0, validation, all);
    if (std::string_view(domain) != "c4") continue;
    for (std::size_t at = 0; at < std::size(published_on_c4); ++at) {
      validation.verdicts.push_back(
          {study_name,
           fmt::format("OLMoE on c4, library CF {:.2f}: {:.2f} % lost, {} % published (bar: its "
                       "last digit)",
                       as_factor(factors[at]), 100 * lost[at], published_on_c4[at]),
           std::abs(100 * lost[at] - published_on_c4[at]) <= 0.05});
    }
  }
  const CsvTable table = CsvTable::load(path_of(folder, "expert_counts.csv"));
  for (const char* tuned : {"-SFT", "-Instruct"}) {
    const std::string model = std::string(olmoe) + tuned;
    bool is_recorded = false;
    for (std::size_t row = 0; row < table.rows.size() && !is_recorded; ++row) {
      is_recorded = table.text(row, "model") == model;
    }
    if (is_recorded) add_layers(*olmoe_counts(folder, model, "tulu").trace, 0, layers);
  }
}

// `layers` receives those of the last iteration.
void add_smartmoe(const std::string& folder, Validation& validation, Counted& all,
                  RecordedLayers& layers) {
  routing::ArrayQuery query;
  query.file = path_of(folder, "smartmoe_routing_trace.npz");
  query.array = "counts";
  query.axes = {"step", "rank", "layer", "micro-batch", "expert"};
  query.steps = "iterations";
  query.top_k = 2;
  const routing::ImportedTrace counts = routing::import_array(query);
  const int steps = counts.trace->shape().steps;
  for (const int step : {0, steps / 2, steps - 1}) {
    const std::string subject =
        fmt::format("SmartMoE, iteration {}", counts.steps[static_cast<std::size_t>(step)]);
    add_counted(subject, counts.trace, step, validation, all);
  }
  add_layers(*counts.trace, steps - 1, layers);
}

}  // namespace

std::vector<RoutingJob> random_draw_jobs(const std::string& folder) {
  std::vector<RoutingJob> jobs;
  if (!is_there(folder, random_table)) return jobs;
  const CsvTable table = CsvTable::load(path_of(folder, random_table));
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    constexpr std::int64_t most = std::numeric_limits<int>::max();
    const auto whole = [&](const char* column) {
      return table.whole(row, table.column(column), most);
    };
    RoutingJob job =
        job_of(static_cast<int>(whole("num_experts")), static_cast<int>(whole("top_k")),
               whole("num_tokens"), table.text(row, "capacity_factor"));
    job.scores = routing::parse_score_source("gaussian:0", "--routing");
    job.layers = draws;
    jobs.push_back(job);
  }
  return jobs;
}

Validation validate_routing(const std::string& folder, routing::RoutingCache& cache) {
  Validation validation{"Token loss of random logits and of recorded counts",
                        "moe-routing-bench, OLMoE and SmartMoE, as far as they are in --data",
                        {},
                        {}};
  if (is_there(folder, random_table)) add_random(folder, cache, validation);
  Counted all;
  std::vector<RecordedLayers> recorded;
  if (is_there(folder, "expert_counts.csv")) {
    RecordedLayers& layers = recorded.emplace_back();
    layers.name = "layers of OLMoE";
    add_olmoe(folder, validation, all, layers);
  }
  if (is_there(folder, "smartmoe_routing_trace.npz")) {
    RecordedLayers& layers = recorded.emplace_back();
    layers.name = "layers of SmartMoE's last iteration";
    layers.balance_loss = false;
    add_smartmoe(folder, validation, all, layers);
  }
  if (validation.rows.empty()) {
    throw UsageError(fmt::format(
        "validate routing: --data {}: none of {}, expert_counts.csv and smartmoe_routing_trace.npz "
        "is there",
        folder, random_table));
  }
  if (all.cases > 0) {
    validation.verdicts.push_back(
        {study_name,
         fmt::format("recorded counts: {} cases lose what direct counting says, off by {:.1g} at "
                     "most (bar: rounding, {:.0e})",
                     all.cases, all.worst, rounding),
         all.worst <= rounding});
  }
  report_unknown_loss(recorded, validation);
  return validation;
}

}  // namespace moesim::study
