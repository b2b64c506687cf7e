#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "sim/base/json_text.hpp"
#include "sim/base/npy.hpp"
#include "sim/base/text.hpp"
#include "sim/report/formats.hpp"
#include "sim/report/routing_detail.hpp"
#include "sim/report/summary.hpp"
#include "sim/routing/groups/logits_file.hpp"
#include "sim/routing/simulation/job_losses.hpp"
#include "sim/routing/simulation/mean_loss.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/prefetch.hpp"
#include "tools/moesim/profiling/fit_scores.hpp"

namespace moesim::tool {
namespace {

using routing::ReplicaRouting;
using Replicas = std::vector<std::shared_ptr<const ReplicaRouting>>;

routing::TokenLoss mean_over(const Replicas& replicas) {
  std::vector<routing::TokenLoss> losses;
  for (const auto& replica : replicas) losses.push_back(replica->loss);
  return routing::mean_loss(losses);
}

Replicas route_all(const routing::RoutingJob& job, int replica_count, int jobs) {
  routing::check(job);
  // Every replica is kept below, so the cache must not drop one before it is read.
  routing::RoutingCache cache(std::size_t{4} << 30);
  prefetch_routing({&job, 1}, replica_count, jobs, cache);
  Replicas replicas;
  for (int replica = 0; replica < replica_count; ++replica) {
    replicas.push_back(cache.get(job, replica));
  }
  return replicas;
}

// The sizes are those of the file: typed ones have to agree with it.
void check_sizes(const CommandLine& line, const NpyArray& array) {
  if (array.shape.size() != 3) return;  // refused where it is routed
  const std::vector<std::pair<const char*, std::int64_t>> sizes{{"expert-parallel", array.shape[0]},
                                                                {"tokens-per-gpu", array.shape[1]},
                                                                {"experts", array.shape[2]}};
  constexpr std::int64_t most = std::int64_t{1} << 31;
  for (const auto& [flag, size] : sizes) {
    if (!line.has(flag) || parse_whole(fmt::format("--{}", flag), line.get(flag), 1, most) == size)
      continue;
    throw UsageError(
        fmt::format("--{}: {} is not what {} holds: its shape {} says {}: leave the "
                    "option out",
                    flag, line.get(flag), array.name, array.shape_text(), size));
  }
}

// With the options of the router alone: how many experts and tokens there are is for the file to
// say.
scenario::Scenario typed_scenario(const CommandLine& line) {
  scenario::DocumentCache documents;
  scenario::OptionValues values = line.scenario();
  for (const auto& [option, text] : values) scenario::check_value(option, text, documents);
  for (const char* of_the_file :
       {"experts", "expert-parallel", "expert-placement", "gpus", "tokens-per-gpu"}) {
    values.erase(of_the_file);
  }
  return scenario::fill_in(values, documents, scenario::Use::routing);
}

ExitCode route_file(const CommandLine& line) {
  if (!line.has("out")) throw UsageError("--logits: give the .npy of the routes too: --out FILE");
  if (line.has("format")) {
    throw UsageError("--format: with --logits the result is a .npy file: leave --format out");
  }
  const NpyArray logits = NpyArray::load(line.get("logits"));
  check_sizes(line, logits);
  const scenario::Scenario scenario = typed_scenario(line);
  const routing::RouterConfig& router = scenario.router;
  if (router.is_dense()) throw UsageError("--router: dense routes nothing: choose top1, top2, ...");
  const scenario::Scenario* const only = &scenario;
  note_idle_options(line.scenario(), {&only, 1}, scenario::Asker::logits);
  routing::RouterContext context;
  context.seed = scenario.seed;
  const routing::RoutedGroup group =
      routing::route_logits(router, logits, line.get("out"), context);
  if (line.has("losses")) {
    const routing::AuxiliaryLosses losses = routing::auxiliary_losses(router, logits);
    note(fmt::format("balance loss {:.6g} by first choices, {:.6g} by all {}; z-loss {:.6g}",
                     losses.balance, losses.balance_all, router.top_k, losses.z));
  }
  note(fmt::format("routes of {} tokens by {}, {:.2f} % of the primary ones failed: {}",
                   group.tokens, router.name(), group.loss.failed * 100, line.get("out")));
  return ExitCode::ok;
}

// Means over layers of the first replica, and each layer.
nlohmann::ordered_json losses_of(const routing::RoutingJob& job) {
  const auto of = [](const routing::AuxiliaryLosses& losses) {
    return nlohmann::ordered_json{{"balance", report::json_figure(losses.balance)},
                                  {"balance_all_choices", report::json_figure(losses.balance_all)},
                                  {"z", report::json_figure(losses.z)}};
  };
  const std::vector<routing::AuxiliaryLosses> layers = routing::auxiliary_losses(job, 0);
  routing::AuxiliaryLosses mean;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const routing::AuxiliaryLosses& layer : layers) {
    const auto share = 1.0 / static_cast<double>(layers.size());
    mean.balance += share * layer.balance;
    mean.balance_all += share * layer.balance_all;
    mean.z += share * layer.z;
    list.push_back(of(layer));
  }
  nlohmann::ordered_json result = of(mean);
  result["layers"] = list;
  return result;
}

std::string losses_lines(const nlohmann::ordered_json& detail) {
  const auto found = detail.find("auxiliary_losses");
  if (found == detail.end()) return "";
  return fmt::format(
      "\nbalance loss   {:.6g} by first choices, {:.6g} by all k, mean over layers of one replica\n"
      "z-loss         {:.6g}\n",
      (*found)["balance"].get<double>(), (*found)["balance_all_choices"].get<double>(),
      (*found)["z"].get<double>());
}

ExitCode run(const CommandLine& line) {
  if (line.has("fit-scores")) {
    for (const auto& [flag, text] : line.values) {
      if (flag == "fit-scores" || flag == "out") continue;
      throw UsageError(
          fmt::format("--{}: with --fit-scores the trace says it all: leave it out", flag));
    }
    return fit_scores(line);
  }
  if (line.has("logits")) return route_file(line);
  const report::Format format = chosen_format(line, report::Format::table);
  const int jobs = chosen_jobs(line);
  scenario::DocumentCache documents;
  const scenario::Scenario scenario =
      scenario::resolve(line.scenario(), documents, scenario::Use::routing);
  if (!scenario.has_moe()) {
    throw UsageError(
        fmt::format("--router: {} routes nothing: choose top1, top2, ... and a model "
                    "with experts",
                    scenario.router.name()));
  }
  const scenario::Scenario* const only = &scenario;
  note_idle_options(line.scenario(), {&only, 1}, scenario::Asker::routing);
  note_repeated_trace(scenario);
  const Output out(line.get("out"));
  routing::RoutingJob job = scenario.routing_job();
  job.count_copies = job.fidelity == routing::Fidelity::tokens;
  const Replicas replicas = route_all(job, scenario.replicas, jobs);

  study::Outcome outcome;
  outcome.capacity = routing::slots_per_expert(job, *replicas[0]);
  outcome.loss = mean_over(replicas);
  const std::vector<std::string> columns = study::names_of(study::route_columns());
  const study::Row row = study::route_row(scenario, outcome);
  const auto row_bytes = static_cast<double>(scenario.model->hidden) * 2;  // bf16
  nlohmann::ordered_json detail = report::routing_detail(job, replicas, row_bytes);
  if (line.has("losses")) detail["auxiliary_losses"] = losses_of(job);
  if (format == report::Format::table) {
    out.write(report::route_summary(scenario, outcome, replicas[0]->layers.size(), detail) +
              losses_lines(detail));
  } else if (format == report::Format::csv) {
    out.write(report::to_csv(columns, {row}));
  } else {
    nlohmann::ordered_json object = report::to_json(columns, row);
    object["detail"] = detail;
    out.write(json_text(object, 2) + "\n");
  }
  return ExitCode::ok;
}

}  // namespace

Command route_command() {
  return {"route",
          "run a router alone: token loss; or logits .npy in, routes .npy out",
          "[options]",
          "moesim route --router top2+fr+ir --capacity-factor 1 --replicas 4",
          {{"logits", "FILE", "none",
            "route these logits instead: float32 .npy [P, S, E]; --out is a .npy of routes"},
           {"losses", "", "off",
            "also balance losses, by first and by all choices, and z-loss, before drops"},
           fit_scores_flag(),
           format_flag(),
           out_flag(),
           jobs_flag()},
          true,
          0,
          run};
}

}  // namespace moesim::tool
