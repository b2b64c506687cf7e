#include "sim/job/drawn_routing.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "sim/base/statistics.hpp"
#include "sim/base/text.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/rules/routing_refusal.hpp"
#include "sim/routing/scores/score_source.hpp"
#include "sim/routing/scores/unknown_popularity.hpp"
#include "sim/scenario/document_cache.hpp"
#include "sim/scenario/options.hpp"
#include "sim/scenario/router_options.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/training/drawn/block_routing.hpp"
#include "sim/training/step/job_rules.hpp"

namespace moesim::job {
namespace {

using training::DrawnRouting;
using training::TrainingJob;

using scenario::OptionValues;

constexpr const char* draws_option = "routing-draws";
constexpr const char* rank_option = "rank-capacity";
constexpr const char* step_option = "trace-step";
constexpr const char* balanced = "balanced";

// Scenario options with the same name and meaning in `simulate`.
constexpr const char* routing_options[] = {"router",
                                           "top-k",
                                           "group-score",
                                           "score-function",
                                           "second-expert",
                                           "expert-bias",
                                           "router-dtype",
                                           "capacity-factor",
                                           "capacity-convention",
                                           "capacity-scope",
                                           "min-capacity",
                                           "router-dialect",
                                           "padding",
                                           "capacity-alignment",
                                           "priority",
                                           "fill-order",
                                           "ir-duplicates",
                                           "routing",
                                           "fidelity",
                                           "expert-placement",
                                           "seed"};

// The options among these whose column is only in rows of jobs that have them: they came later.
constexpr const char* rare_options[] = {"group-score", "score-function", "second-expert",
                                        "expert-bias", "router-dtype",   "capacity-alignment"};

std::string default_in_training(const std::string& option, const std::string& usual) {
  if (option == "capacity-factor") return "dropless";
  if (option == "capacity-convention") return "library";
  // Any option of routing draws it, these too where their defaults are typed.
  if (option == "routing" || option == "seed") {
    return fmt::format("forced balance; {} with an option of routing", usual);
  }
  return usual;
}

std::string help_in_training(const scenario::Option& option) {
  if (option.name != "capacity-factor") return option.help;
  return "of S tokens of a rank an expert takes at most C = ceil(k CF S / E)";
}

bool is_drawn(routing::ScoreSource::Kind kind) {
  routing::ScoreSource source;
  source.kind = kind;
  return kind != routing::ScoreSource::Kind::unknown && !source.is_ragged();
}

// The values of an option without those that a training step refuses.
std::vector<scenario::NamedValue> values_in_training(const scenario::Option& option) {
  if (option.name == "router") {
    return scenario::named_values(routing::router_forms([](const routing::RouterDescriptor& kind) {
      routing::RouterConfig router;
      router.kind = &kind;
      return training::draw_refusal(router).empty();
    }));
  }
  if (option.name == "routing") {
    return scenario::named_values(routing::score_source_forms(is_drawn));
  }
  return option.values;
}

OptionValues routing_values(const OptionValues& typed) {
  OptionValues values;
  for (const char* option : routing_options) {
    if (const auto found = typed.find(option); found != typed.end()) values.insert(*found);
  }
  return values;
}

// The scenario whose routing is that of the job.
OptionValues scenario_values(const OptionValues& typed, const TrainingJob& job) {
  OptionValues values = routing_values(typed);
  // A balanced load is CF 1, as Megatron-Core has it.
  if (!typed.contains("capacity-convention") && !typed.contains("router-dialect")) {
    values["capacity-convention"] = "library";
  }
  if (const auto model = typed.find("model"); model != typed.end()) values.insert(*model);
  // Routing depends on the cluster alone of the machine; a calibrated profile is none of a
  // scenario.
  const auto cluster = typed.find("cluster");
  values["cluster"] =
      cluster != typed.end() ? cluster->second : job.profile->device().usual_cluster;
  const std::string ranks = fmt::format("{}", job.layout.sizes.expert);
  values["gpus"] = values["expert-parallel"] = ranks;
  values["tokens-per-gpu"] = fmt::format("{}", std::llround(job.tokens_per_rank()));
  return values;
}

// What `ask` answers of a scenario; errors name the options and values of a training step.
template <class Ask>
auto said_of_training(const Ask& ask) {
  try {
    return ask();
  } catch (const routing::RoutingRefusal& refusal) {
    throw UsageError(refusal.in_training());
  } catch (const routing::NoScoreSource& refusal) {
    throw refusal.of(routing::score_source_forms(is_drawn));
  }
}

scenario::Scenario resolved(const OptionValues& values, scenario::DocumentCache& documents) {
  return said_of_training(
      [&] { return scenario::resolve(values, documents, scenario::Use::routing); });
}

// The first typed option that asks for routing, --routing-draws last; null: none is typed.
const char* routing_asked_by(const OptionValues& typed) {
  std::vector<const char*> options(std::begin(routing_options), std::end(routing_options));
  options.insert(options.end(), {rank_option, step_option, draws_option});
  const auto found = std::find_if(options.begin(), options.end(),
                                  [&](const char* option) { return typed.contains(option); });
  return found == options.end() ? nullptr : *found;
}

// Copies of hot experts are of use where some are hot.
bool asks_for_popularity(const OptionValues& typed) {
  return typed.contains("routing") || typed.contains("redundant-experts");
}

double rank_capacity(const OptionValues& typed) {
  const auto found = typed.find(rank_option);
  if (found == typed.end()) return 0;
  const double load = parse_number<double>(found->second).value_or(0);
  if (load >= 1 && load <= 1000) return load;
  throw UsageError(fmt::format(
      "--rank-capacity: '{}' is no number from 1 (balanced) to 1000, such as 1.5", found->second));
}

int trace_step(const OptionValues& typed) {
  const auto found = typed.find(step_option);
  if (found == typed.end()) return 0;
  return static_cast<int>(parse_whole("--trace-step", found->second, 1, 1 << 30));
}

training::RoutingDraws draws_of(const OptionValues& typed) {
  const auto found = typed.find(draws_option);
  if (found == typed.end()) return training::RoutingDraws::per_layer;
  return value_in(training::routing_draws_names, found->second, fmt::format("--{}", draws_option));
}

void refuse_unknown_popularity() {
  const routing::PopularitySpreads& spreads = routing::balanced_spreads;
  const double factor = std::exp(normal_quantile(0.9) * spreads.trainings);
  throw UsageError(fmt::format(
      "--routing unknown: a training step is drawn once, not in replicas: give gaussian:{:.2f}, "
      "gaussian:{:.2f} and gaussian:{:.2f}, the 10th, 50th and 90th percentile of recorded "
      "trainings, to one run each",
      spreads.median / factor, spreads.median, spreads.median * factor));
}

void set_expert_load(const std::string& text, Resolution& at) {
  const double load = parse_number<double>(text).value_or(0);
  if (!(load >= 1 && load <= 1000)) {  // NaN too
    throw UsageError(fmt::format(
        "--expert-load: '{}' is no number from 1 (balanced) to 1000, such as 1.1", text));
  }
  at.job.expert_load = load;
}

void check_expert_load(const TrainingJob& job) {
  if (const auto refusal = training::expert_load_refusal(job)) throw UsageError(*refusal);
}

// Whether a capacity is asked for that the model's own router, which drops nothing, does not have.
bool lacks_capacity(const OptionValues& typed, const routing::RouterConfig& router) {
  return typed.contains("capacity-factor") && !typed.contains("router") && !router.has_capacity() &&
         !router.pads_to_busiest();
}

// topk in the place of a model's router that has no capacity where one is asked for.
void replace_router(OptionValues& values, const OptionValues& typed,
                    scenario::DocumentCache& documents, RoutingNotes& notes) {
  OptionValues usual = values;
  for (const char* option : rare_options) usual.erase(option);  // those of topk may not be its
  const routing::RouterConfig router = resolved(usual, documents).router;
  if (!lacks_capacity(typed, router)) return;
  values["router"] = "topk";
  values.try_emplace("top-k", fmt::format("{}", router.top_k));
  notes.replaced.push_back(fmt::format(
      "note: --capacity-factor: the model's router, {}, has no capacity: topk in its place",
      router.name()));
}

scenario::Scenario resolved_routing(OptionValues values, const OptionValues& typed,
                                    scenario::DocumentCache& documents, RoutingNotes& notes) {
  const bool has_factor = typed.contains("capacity-factor");
  if (has_factor && !typed.contains("router")) replace_router(values, typed, documents, notes);
  scenario::Scenario scenario = resolved(values, documents);
  if (scenario.scores.kind == routing::ScoreSource::Kind::unknown) refuse_unknown_popularity();
  // A capacity only where one is asked for.
  if (!has_factor && scenario.router.kind->capacity == routing::CapacityRule::by_factor) {
    scenario.router.drops = false;
  }
  return scenario;
}

// Options of `values` that change no step. A dialect without capacity or groups decides alone what
// is sent beside the tokens, which a training step does not price.
std::vector<scenario::IdleOption> idle_routing(const OptionValues& values,
                                               const scenario::Scenario& scenario) {
  const scenario::Scenario* const only = &scenario;
  std::vector<scenario::IdleOption> idle =
      scenario::idle_options(values, {&only, 1}, scenario::Asker::step);
  const auto dialect = values.find("router-dialect");
  const bool draws = scenario.router.second_expert == routing::SecondExpert::sampled;
  if (dialect == values.end() || draws) return idle;
  const OptionValues alone{*dialect};
  for (const scenario::IdleOption& of_routing :
       scenario::idle_options(alone, {&only, 1}, scenario::Asker::routing)) {
    const bool is_said = std::any_of(idle.begin(), idle.end(), [&](const auto& each) {
      return each.option == of_routing.option;
    });
    if (!is_said) idle.push_back(of_routing);
  }
  return idle;
}

}  // namespace

std::optional<DrawnRouting> drawn_routing(const OptionValues& typed, const TrainingJob& job,
                                          scenario::DocumentCache& documents, RoutingNotes& notes) {
  const char* const asked_by = routing_asked_by(typed);
  if (asked_by == nullptr) return std::nullopt;
  if (const auto draws = typed.find(draws_option);
      draws != typed.end() && draws->second == balanced) {
    if (std::string_view(asked_by) == draws_option) return std::nullopt;
    throw UsageError(fmt::format(
        "--{} with --routing-draws balanced: forced balance draws no routing: leave one of them "
        "out",
        asked_by));
  }
  if (!job.model->moe) {
    throw UsageError(
        fmt::format("--{}: model {} has no MoE layers: leave the options of routing out", asked_by,
                    job.typed.model));
  }
  const scenario::Scenario scenario =
      resolved_routing(scenario_values(typed, job), typed, documents, notes);
  notes.idle = idle_routing(routing_values(typed), scenario);
  // Alone it has the effect that routing is drawn.
  OptionValues others = typed;
  others.erase("router-dialect");
  if (routing_asked_by(others) == nullptr) {
    std::erase_if(notes.idle, [](const auto& idle) { return idle.option == "router-dialect"; });
  }
  const std::string empty =
      scenario::note_of_empty_slots(scenario.router, scenario.tokens_per_gpu, scenario.experts);
  if (!empty.empty()) notes.slots.push_back(empty);
  const std::string alike = scenario::note_of_equal_weights(scenario.router);
  if (!alike.empty()) notes.priority.push_back(alike);
  if (scenario.router.scores_experts()) {
    notes.scores =
        scenario::notes_of_scores(scenario.scores, job.model->moe_layers(), job.typed.model);
    for (const std::string& text :
         scenario::notes_of_recorded(scenario.scores, {&scenario.router, 1})) {
      notes.scores.push_back(text);
    }
    const std::string trained = scenario::note_of_trained_biases(scenario.scores, scenario.router);
    if (asks_for_popularity(typed) && !trained.empty()) notes.scores.push_back(trained);
  }
  DrawnRouting drawn;
  drawn.router = scenario.router;
  drawn.scores = scenario.scores;
  drawn.fidelity = scenario.fidelity;
  drawn.placement = scenario.order;
  drawn.placement_name = scenario.expert_placement;
  for (const char* option : rare_options) {
    if (!typed.contains(option)) continue;
    drawn.rare_options.emplace_back(option, scenario::option_named(option).cell(scenario));
  }
  drawn.seed = scenario.seed;
  drawn.draws = draws_of(typed);
  drawn.rank_capacity = rank_capacity(typed);
  drawn.trace_step = trace_step(typed);
  training::check_trace_step(drawn);
  return drawn;
}

std::optional<DrawnRouting> drawn_routing(const OptionValues& typed, const TrainingJob& job,
                                          RoutingNotes& notes) {
  scenario::DocumentCache documents;
  return drawn_routing(typed, job, documents, notes);
}

void check_routing_text(const std::string& option, const std::string& text) {
  const OptionValues alone{{option, text}};
  if (option == rank_option) {
    rank_capacity(alone);
  } else if (option == step_option) {
    trace_step(alone);
  } else if (option == draws_option) {
    if (text != balanced) draws_of(alone);
  } else {
    scenario::DocumentCache documents;
    said_of_training([&] { scenario::check_value(option, text, documents); });
  }
}

void declare_routing(JobOptionTable& table) {
  for (const std::string name : routing_options) {
    const scenario::Option& declared = scenario::option_named(name);
    JobOption option;
    option.name = declared.name;
    option.placeholder = declared.placeholder;
    option.default_text = default_in_training(declared.name, declared.default_text);
    option.help = help_in_training(declared);
    option.values = values_in_training(declared);
    option.is_number = declared.is_number();
    if (name == "fidelity") {
      option.values.back().meaning = "counts where offered, else from a sample of tokens";
    }
    if (name == "router" || name == "capacity-factor") option.in_search = InSearch::searched;
    if (name == "capacity-factor") option.megatron = {{"moe-expert-capacity-factor"}};
    table.routing(std::move(option));
  }
  JobOption rank;
  rank.name = rank_option;
  rank.placeholder = "X";
  rank.is_number = true;
  rank.default_text = "none";
  rank.help =
      "dropless, with a buffer of X times balance on each rank: without host reads; if a rank "
      "overflows anywhere, the step runs again without it";
  rank.in_search = InSearch::refused;
  rank.megatron = {{"moe-expert-rank-capacity-factor"}};
  table.routing(std::move(rank));
  JobOption step;
  step.name = step_option;
  step.placeholder = "N";
  step.is_number = true;
  step.default_text = "all, or 16 of them evenly spread";
  step.help =
      "of a trace the one recorded step to take, from 1 on; without it the mean of all, or per "
      "micro-batch one after another";
  table.routing(std::move(step));
  JobOption draws;
  draws.name = draws_option;
  draws.placeholder = "NAME";
  draws.default_text = "balanced; per-layer with any option of routing";
  draws.help = "what of a step's routing is drawn:";
  draws.values = {{balanced, "none: forced balance, the rows of random logits"}};
  for (const auto& name : training::routing_draws_names) {
    draws.values.push_back({name.name, name.meaning});
  }
  table.routing(std::move(draws));
}

void declare_loads(JobOptionTable& table) {
  table.begin(Section::routing);
  table.text("expert-load", "X", set_expert_load)
      .of_numbers()
      .by_default("that of random logits", nullptr)
      .in_layout("1")
      .shown_as([](const TrainingJob& job) {
        return job.expert_load > 0 ? Cell(job.expert_load) : Cell();
      })
      .checked(check_expert_load)
      .help("rows of experts on the fullest rank over balance, such as 1.1, instead of drawn ones");
  table
      .whole("redundant-experts", 0, training::most_redundant_experts,
             field(&TrainingJob::redundant_experts))
      .by_default("0")
      .help(
          "copies of hot experts in each MoE layer, placed by measured load (EPLB); with drawn "
          "routing");
}

}  // namespace moesim::job
