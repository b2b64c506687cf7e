#include "tools/moesim/recommend/request/recommend_request.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/base/no_answer.hpp"
#include "sim/base/text.hpp"
#include "sim/job/drawn_routing.hpp"
#include "sim/job/job_options.hpp"
#include "sim/scenario/expert_placements.hpp"
#include "sim/study/search/searched_choices.hpp"
#include "sim/training/step/job_rules.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/shell_word.hpp"
#include "tools/moesim/recommend/request/recommend_flags.hpp"
#include "tools/moesim/recommend/request/search_limits.hpp"
#include "tools/moesim/recommend/request/searched_routings.hpp"
#include "tools/moesim/recommend/request/typed_lists.hpp"
#include "tools/moesim/scenario/scenario_notes.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

using study::TrainingSearch;
using study::TrainingSpace;
using training::TrainingJob;

constexpr std::int64_t sequences_per_gpu = 16;  // of the default global batch
constexpr std::size_t most_with_twins = 20;

// A file places the experts of one number of ranks: takes the first of the space that it is of.
void place_experts(const CommandLine& line, const TrainingSpace& space, TrainingJob& usual) {
  if (!line.has("expert-placement") || !usual.model->moe) return;
  const auto is_placed = [&](int ranks) {
    try {
      scenario::parse_expert_placement(line.get("expert-placement"), usual.model->moe->experts,
                                       ranks);
      return true;
    } catch (const UsageError&) {
      return false;
    }
  };
  int& expert = usual.layout.sizes.expert;
  if (is_placed(expert)) return;
  const auto other = std::find_if(space.expert.begin(), space.expert.end(), is_placed);
  if (other != space.expert.end()) expert = *other;
}

// Sets the step of the layout that was started from, with routing drawn where the search draws
// all, or why there is none.
void set_step_of(const StartingPoint& start, const RecommendRequest& request, Yours& yours) {
  try {
    TrainingJob job = resolved_job(start.line, true, request.documents.get()).job;
    job.host.factor = request.search.space.base.host.factor;
    training::check_job(job);
    if (!job.routing && request.search.space.routings.front()) {
      job = request.drawn(job);
      if (job.routing) yours.command += " --routing-draws per-layer";
    }
    study::FoundStep found{job, {}, 0, 0, {}, {}};
    const auto loads = job.routing ? request.search.drawn->loads(job) : nullptr;
    study::set_step(request.search, training::training_step(job, loads, false), found);
    study::add_for_band(request.search, found);
    yours.step = found;
  } catch (const Error&) {
    yours.refusal = why_unanswered();
  }
}

// Sets what the search is compared with. It may lose what that loses, unless the line says what.
void take_yours(const StartingPoint& start, RecommendRequest& request) {
  Yours yours{start.name, start.command, std::nullopt, ""};
  set_step_of(start, request, yours);
  if (yours.step && yours.step->loss > 0 && !request.line.has("max-loss")) {
    constexpr double grid = 200;  // half per cent: other layouts draw other tokens
    request.search.max_loss = std::ceil(grid * yours.step->loss) / grid;
    note(fmt::format(
        "note: the step of {} loses {:.2f} % of the tokens' weight, so --max-loss {:g}% is taken",
        start.name, 100 * yours.step->loss, 100 * request.search.max_loss));
  }
  request.yours = std::move(yours);
}

// Errors before the search, not after it.
void check_flags(const CommandLine& line) {
  requested_run_cost(line);
  if (line.has("replicas")) {
    throw UsageError("--replicas: of --mode prefill: training steps are drawn once: leave it out");
  }
  for (const auto& [flag, value] : line.values) {
    if (!is_of_prefill_alone(flag)) continue;
    throw UsageError(
        fmt::format("--{}: of --mode prefill: training steps do not have it: leave it out", flag));
  }
}

void take_expert_load(const CommandLine& line, TrainingJob& base) {
  if (!line.has("expert-load")) return;
  job::Resolution at{line.values, base};
  job::job_option_named("expert-load").set(line.get("expert-load"), at);
  TrainingJob routed = base;
  // `base` has no values of these yet.
  for (const char* drawn : {"capacity-factor", "router", "max-loss"}) {
    if (line.has(drawn)) routed.routing.emplace();
  }
  const auto refusal = training::expert_load_refusal(routed);
  if (routed.routing && refusal) throw UsageError(*refusal);
}

// The job that all candidates are made of, from one whose layout is of no effect.
TrainingJob without_layout(const CommandLine& line, TrainingJob base) {
  base.layout.sizes = {};
  base.layout.sizes.gpus = static_cast<int>(requested_whole(line, "gpus", 32));
  base.layout.stages.reset();
  base.layout.recomputes_experts = false;
  base.layout.global_batch =
      requested_whole(line, "global-batch", sequences_per_gpu * base.layout.sizes.gpus);
  check_run(requested_run_cost(line),
            static_cast<double>(base.layout.global_batch * base.layout.sequence_length));
  for (const auto& choice : study::searched_choices()) {
    const bool is_left = choice->traits().checked_by_search && line.has(choice->option());
    if (is_left) choice->set(list_of(line, choice->option()).front(), base);
  }
  take_expert_load(line, base);
  return base;
}

void take_depths(const CommandLine& line, const TrainingJob& base, TrainingSpace& space) {
  space.mtp_depths =
      static_cast<int>(line.has("mtp") ? parse_whole("--mtp", line.get("mtp"), 0, 16) : 0);
  if (space.mtp_depths > base.model->mtp_depths) {
    throw UsageError(fmt::format("--mtp {}: {} has {} depths of multi-token prediction",
                                 space.mtp_depths, base.typed.model, base.model->mtp_depths));
  }
  note_left_out(*base.model, base.typed.model);
  if (!line.has("mtp")) note_depths(base, fmt::format("--mtp {}", base.model->mtp_depths));
}

void take_limits(const CommandLine& line, TrainingSearch& search) {
  const SearchLimits limits = requested_limits(line);
  search.best = limits.best;
  search.max_loss = limits.max_loss;
  search.min_speed = limits.min_speed;
  search.memory_share = limits.memory_share;
  search.chunks_tell_apart = value_in(distinct_names, line.get("distinct", "layout"), "--distinct");
  if (search.best > most_with_twins) search.twin_margin = 0;
}

}  // namespace

RecommendRequest requested_search(const SearchSource& source) {
  const CommandLine& line = source.line;
  check_flags(line);
  // That routing is checked with.
  TrainingJob usual = resolved_job(first_values(line), true, source.documents.get()).job;
  training::check_decoder(usual);
  TrainingJob base = without_layout(line, usual);
  RecommendRequest request;
  request.line = line;
  request.documents = source.documents;
  TrainingSearch& search = request.search;
  search.drawn = std::make_shared<study::DrawnRoutings>();
  if (auto own = study::own_software(requested_software(line, base), base)) {
    base.host.factor = own->host_factor();
    search.software = std::make_shared<const uncertainty::StepSoftware>(std::move(*own));
  }
  request.software = search.software ? search.software->software : line.get("software");
  search.space = study::usual_training_space(base);
  take_lists(line, *source.documents, search.space);
  if (source.start) {
    add_layout(line, resolved_job(source.start->line, true, source.documents.get()).job,
               search.space);
  }
  note_idle_options(line, search.space);
  take_depths(line, base, search.space);
  take_limits(line, search);
  place_experts(line, search.space, usual);
  take_routings(line, usual, search.max_loss > 0, request);
  if (source.start) take_yours(*source.start, request);
  note_dialect(line, search.space);
  search.jobs = chosen_jobs(line);
  return request;
}

TrainingJob RecommendRequest::drawn(const TrainingJob& job) const {
  CommandLine drawn = line;
  drawn.values["routing-draws"] = "per-layer";
  for (const char* searched : {"router", "capacity-factor"}) drawn.values.erase(searched);
  TrainingJob found = job;
  job::RoutingNotes ignored;
  found.routing = job::drawn_routing(drawn.values, job, *documents, ignored);
  return found;
}

std::string RecommendRequest::command_of(const study::FoundStep& found) const {
  const TrainingJob& job = found.job;
  const parallel::LayoutRequest& request = job.layout;
  std::vector<std::string> words{"moesim train"};
  const auto add = [&](const char* flag, const std::string& value) {
    words.push_back(fmt::format("--{} {}", flag, shell_word(value)));
  };
  const auto add_choice = [&](const study::SearchedChoice& choice) {
    if (choice.option() == "virtual-pipeline" && request.stages) {
      add("pipeline-layout", request.stages->text());
    } else if (!choice.is_default(job)) {
      add(choice.traits().option, choice.text(job));
    }
  };
  const bool has_capacity = job.routing && job.routing->router.has_capacity();
  for (const Flag& flag : train_flags()) {
    const std::string& name = flag.name;
    if (!line.has(name) || is_searched(name) || name == "global-batch") continue;
    // Nobody typed these, which are of a capacity alone.
    const bool is_of_capacity = name == "padding" || name == "priority" || name == "score-function";
    if (is_of_capacity && line.of_row.contains(name) && !has_capacity) continue;
    add(name.c_str(), line.get(name));
  }
  if (line.has("software")) add("software", line.get("software"));
  for (const Flag& flag : run_cost_flags()) {
    if (line.has(flag.name)) add(flag.name.c_str(), line.get(flag.name));
  }
  const study::SearchedChoice& precision = study::searched_choice_named("precision");
  add_choice(precision);
  add("global-batch", fmt::format("{}", request.global_batch));
  for (const auto& choice : study::searched_choices()) {
    const bool is_last = choice->traits().chosen_for == study::ChosenFor::job;
    if (!is_last && choice.get() != &precision) add_choice(*choice);
  }
  for (const auto& [flag, value] : routings[found.routing].values) add(flag.c_str(), value);
  for (const auto& choice : study::searched_choices()) {
    if (choice->traits().chosen_for == study::ChosenFor::job) add_choice(*choice);
  }
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace moesim::tool
