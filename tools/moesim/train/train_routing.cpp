#include "tools/moesim/train/train_routing.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "sim/base/statistics.hpp"
#include "sim/base/text.hpp"
#include "sim/routing/scores/unknown_popularity.hpp"
#include "sim/scenario/options.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/train/layout_request.hpp"

namespace moesim::tool {
namespace {

using training::DrawnRouting;
using training::TrainingJob;

constexpr const char* draws_flag = "routing-draws";
constexpr const char* rank_flag = "rank-capacity";
constexpr const char* balanced = "balanced";

// Scenario options with the same name and meaning in `simulate`.
constexpr const char* routing_options[] = {"router",
                                           "top-k",
                                           "capacity-factor",
                                           "capacity-convention",
                                           "capacity-scope",
                                           "min-capacity",
                                           "router-dialect",
                                           "padding",
                                           "priority",
                                           "fill-order",
                                           "ir-duplicates",
                                           "routing",
                                           "fidelity",
                                           "expert-placement",
                                           "seed"};

std::string default_in_training(const std::string& option, const std::string& usual) {
  if (option == "capacity-factor") return "dropless";
  if (option == "capacity-convention") return "library";
  return usual;
}

scenario::OptionValues values_of(const CommandLine& line, const TrainingJob& job) {
  scenario::OptionValues values;
  for (const char* option : routing_options) {
    if (line.has(option)) values[option] = line.get(option);
  }
  // A balanced load is CF 1, as Megatron-Core has it.
  if (!line.has("capacity-convention") && !line.has("router-dialect")) {
    values["capacity-convention"] = "library";
  }
  for (const char* document : {"model", "profile", "cluster"}) {
    if (line.has(document)) values[document] = line.get(document);
  }
  const std::string ranks = fmt::format("{}", job.layout.layout.expert);
  values["gpus"] = values["expert-parallel"] = ranks;
  values["tokens-per-gpu"] = fmt::format("{}", std::llround(job.tokens_per_rank()));
  return values;
}

bool asks_for_routing(const CommandLine& line) {
  for (const char* option : routing_options) {
    if (line.has(option)) return true;
  }
  return line.has(draws_flag) || line.has(rank_flag);
}

double rank_capacity(const CommandLine& line) {
  if (!line.has(rank_flag)) return 0;
  const std::string text = line.get(rank_flag);
  const double load = parse_number<double>(text).value_or(0);
  if (load >= 1 && load <= 1000) return load;
  throw UsageError(fmt::format(
      "--rank-capacity: '{}' is no number from 1 (balanced) to 1000, such as 1.5", text));
}

}  // namespace

std::optional<DrawnRouting> requested_routing(const CommandLine& line, const TrainingJob& job,
                                              bool of_search) {
  if (!asks_for_routing(line)) return std::nullopt;
  if (line.get(draws_flag) == balanced) {
    std::vector<const char*> others(std::begin(routing_options), std::end(routing_options));
    others.push_back(rank_flag);
    for (const char* option : others) {
      if (!line.has(option)) continue;
      throw UsageError(fmt::format(
          "--{} with --routing-draws balanced: forced balance draws no routing: leave one of them "
          "out",
          option));
    }
    return std::nullopt;
  }
  if (!job.model->moe) {
    throw UsageError(
        fmt::format("--router: model {} has no MoE layers: leave the options of "
                    "routing out",
                    job.model->name));
  }
  scenario::DocumentCache documents;
  scenario::Scenario scenario =
      scenario::resolve(values_of(line, job), documents, scenario::Use::routing);
  if (scenario.scores.kind == routing::ScoreSource::Kind::unknown) {
    const routing::PopularitySpreads& spreads = routing::balanced_spreads;
    const double factor = std::exp(normal_quantile(0.9) * spreads.trainings);
    throw UsageError(fmt::format(
        "--routing unknown: a training step is drawn once, not in replicas: give gaussian:{:.2f}, "
        "gaussian:{:.2f} and gaussian:{:.2f}, the 10th, 50th and 90th percentile of recorded "
        "trainings, to one run each",
        spreads.median / factor, spreads.median, spreads.median * factor));
  }
  // A capacity only where one is asked for.
  using routing::CapacityRule;
  if (!line.has("capacity-factor") && scenario.router.kind->capacity == CapacityRule::by_factor) {
    scenario.router.drops = false;
  }
  scenario::OptionValues typed;
  for (const char* option : routing_options) {
    if (line.has(option)) typed[option] = line.get(option);
  }
  if (line.has("capacity-factor") && !line.has("router") && !scenario.router.has_capacity()) {
    // The model's own router drops nothing.
    scenario::OptionValues values = values_of(line, job);
    values["router"] = "topk";
    values.try_emplace("top-k", fmt::format("{}", scenario.router.top_k));
    note(
        fmt::format("note: --capacity-factor: the model's router, {}, has no capacity: topk in its "
                    "place",
                    scenario.router.name()));
    scenario = scenario::resolve(values, documents, scenario::Use::routing);
  }
  const scenario::Scenario* const only = &scenario;
  if (!of_search) note_idle_options(typed, {&only, 1}, scenario::Asker::step);
  DrawnRouting drawn;
  drawn.router = scenario.router;
  drawn.scores = scenario.scores;
  drawn.fidelity = scenario.fidelity;
  drawn.placement = scenario.order;
  drawn.placement_name = scenario.expert_placement;
  drawn.seed = scenario.seed;
  drawn.draws = value_in(training::routing_draws_names, line.get(draws_flag, "per-layer"),
                         fmt::format("--{}", draws_flag));
  drawn.rank_capacity = rank_capacity(line);
  return drawn;
}

std::vector<Flag> training_routing_flags() {
  std::vector<Flag> flags;
  for (const std::string name : routing_options) {
    const scenario::Option& option = scenario::option_named(name);
    flags.push_back({option.name, option.placeholder,
                     default_in_training(option.name, option.default_text), option.help,
                     option.values});
    if (option.name == "fidelity")
      flags.back().choices.back().meaning = "counts where offered, else from a sample of tokens";
  }
  flags.push_back(
      {rank_flag, "X", "none",
       "dropless, with a buffer of X times balance on each rank: without host reads; if "
       "a rank overflows anywhere, the step runs again without it"});
  std::vector<scenario::NamedValue> draws = {
      {balanced, "none: forced balance, the rows of random logits"}};
  for (const auto& name : training::routing_draws_names) draws.push_back({name.name, name.meaning});
  flags.push_back({draws_flag, "NAME", "balanced; per-layer with any option of routing",
                   "what of a step's routing is drawn:", draws});
  return flags;
}

}  // namespace moesim::tool
