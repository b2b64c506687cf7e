#include "tools/moesim/recommend/recommend_request.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/base/text.hpp"
#include "sim/job/documents.hpp"
#include "sim/job/drawn_routing.hpp"
#include "sim/job/job_options.hpp"
#include "sim/scenario/expert_placements.hpp"
#include "sim/study/sweep/grid.hpp"
#include "sim/training/step/job_rules.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/config.hpp"
#include "tools/moesim/megatron/megatron_options.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/recommend/recommend_routings.hpp"
#include "tools/moesim/shell_word.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

using study::TrainingSearch;
using study::TrainingSpace;
using training::TrainingJob;

constexpr std::int64_t sequences_per_gpu = 16;  // of the default global batch
constexpr std::size_t most_with_twins = 20;

bool is_searched(const std::string& flag) {
  return job::job_option_named(flag).in_search == job::InSearch::searched;
}

constexpr EnumNames<bool, 2> distinct_names{
    {{false, "layout",
      "parallel sizes, micro-batch, overlap, dispatcher, router or capacity; twins are counted"},
     {true, "chunks", "virtual stages too"}}};

// Of the search alone.
std::vector<Flag> own_flags() {
  return {
      {"mode", "train|prefill", "train",
       "what is searched: training steps, or forward passes (routers, capacity factors, expert "
       "parallelism and micro-batch, as simulate has them; its help lists more routers)"},
      {"replicas", "R", "16", "of --mode prefill: draws of routing and of the curves' errors"},
      {"best", "N", "5", "how many layouts to print"},
      {"distinct", "WHAT", "layout",
       "what makes two of the best different:", name_choices(distinct_names)},
      {"max-loss", "X%", "0",
       "token loss (residual_loss; 0 for the model's own router without a capacity) that is "
       "acceptable, such as 0.5%; above 0, capacity factors are searched too, with and without "
       "rectification"},
      {"min-speed", "N", "0", "tokens/s/GPU that it must reach"},
      {"memory-share", "X", "0.9", "of a GPU's memory that a step may take; libraries need some"},
      {"mtp", "N", "0", "depths of multi-token prediction to train, behind the last layer"},
      {"all", "FILE.csv", "none", "simulate every candidate as well, a row each"},
      {"chart", "FILE", "none",
       "speed against token loss of the best and of the front: .png, .pdf or .svg"},
      format_flag(),
      out_flag(),
      jobs_flag()};
}

template <class Value, class Parse>
void take_list(const CommandLine& line, const std::string& flag, std::vector<Value>& values,
               const Parse& parse) {
  if (!line.has(flag)) return;
  values.clear();
  for (const std::string& text : list_of(line, flag)) {
    const Value value = parse(text);
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  }
}

void take_sizes(const CommandLine& line, const std::string& flag, std::vector<int>& sizes) {
  take_list(line, flag, sizes, [&](const std::string& text) {
    return static_cast<int>(parse_whole("--" + flag, text, 1, 1 << 20));
  });
}

// The line as `train` takes it, with the first value of each list.
CommandLine first_values(const CommandLine& line) {
  CommandLine first;
  for (const Flag& flag : train_flags()) {
    if (!line.has(flag.name)) continue;
    const bool listed = is_searched(flag.name);
    first.values[flag.name] = listed ? list_of(line, flag.name).front() : line.get(flag.name);
  }
  // Which layouts are possible is for the search to say.
  for (const char* size :
       {"tensor-parallel", "context-parallel", "pipeline-parallel", "virtual-pipeline",
        "expert-parallel", "expert-tensor-parallel", "micro-batch", "ep-overlap", "capacity-factor",
        "router", "cuda-graphs", "expert-load"}) {
    first.values.erase(size);
  }
  // And how experts lie on the ranks of each.
  if (line.has("expert-placement")) first.values["expert-placement"] = "contiguous";
  return first;
}

// `example`: of the shares that people give, in per cent.
double share_of(const CommandLine& line, const char* flag, double fallback, double least,
                double example) {
  if (!line.has(flag)) return fallback;
  std::string text = line.get(flag);
  const bool percent = !text.empty() && text.back() == '%';
  if (percent) text.pop_back();
  const auto value = parse_number<double>(text);
  const double share = value.value_or(-1) / (percent ? 100 : 1);
  if (share >= least && share <= 1) return share;
  throw UsageError(fmt::format("--{}: '{}' is no share from {:g} to 1, such as {:g}% or {:g}", flag,
                               line.get(flag), least, example, example / 100));
}

// Unless it is there, in whatever order its modules were typed.
void add_recompute(const model::Recompute& recompute, TrainingSpace& space) {
  const bool is_there = std::any_of(space.recompute.begin(), space.recompute.end(),
                                    [&](const model::Recompute& other) {
                                      return model::name_of(other) == model::name_of(recompute);
                                    });
  if (!is_there) space.recompute.push_back(recompute);
}

void take_lists(const CommandLine& line, TrainingSpace& space) {
  for (const auto& [option, value] : line.values) space.typed.insert(option);
  take_sizes(line, "tensor-parallel", space.tensor);
  take_sizes(line, "context-parallel", space.context);
  take_sizes(line, "pipeline-parallel", space.pipeline);
  take_sizes(line, "virtual-pipeline", space.virtual_pipeline);
  take_sizes(line, "expert-parallel", space.expert);
  take_sizes(line, "expert-tensor-parallel", space.expert_tensor);
  take_list(line, "ranks-per-domain", space.ranks_per_domain, [&](const std::string& text) {
    return static_cast<int>(
        parse_whole("--ranks-per-domain", text, 1, space.base.cluster->gpus_per_domain));
  });
  take_list(line, "micro-batch", space.micro_batch,
            [](const std::string& text) { return parse_whole("--micro-batch", text, 1, 1 << 20); });
  if (line.has("recompute")) {
    space.recompute.clear();
    for (const std::string& text : list_of(line, "recompute")) {
      add_recompute(model::parse_recompute(text, "--recompute"), space);
    }
  }
  // Each is checked against the GPU and the other options.
  take_list(line, "precision", space.precision, [&](const std::string& text) {
    CommandLine one = first_values(line);
    one.values["precision"] = text;
    return resolved_job(one, true).job.states.precision;
  });
  take_list(line, "zero", space.zero, [](const std::string& text) {
    return static_cast<int>(parse_whole("--zero", text, 0, 3));
  });
  if (line.has("ep-overlap")) {
    static constexpr EnumNames<bool, 2> names{{{false, "off"}, {true, "on"}}};
    space.expert_overlap.clear();
    for (const std::string& text : list_of(line, "ep-overlap")) {
      space.expert_overlap.push_back(value_in(names, text, "--ep-overlap"));
    }
  }
  if (line.has("dispatcher")) {
    space.dispatchers.clear();
    for (const std::string& name : list_of(line, "dispatcher")) {
      space.dispatchers.push_back({name, name == job::no_dispatcher
                                             ? nullptr
                                             : std::make_shared<const profile::Dispatcher>(
                                                   profile::Dispatcher::load(name))});
    }
  }
}

template <class Value>
void add_value(const Value& value, std::vector<Value>& values) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

// The values of a layout that are not among the usual ones, so that it is a candidate, but for how
// its layers are divided.
void add_layout(const CommandLine& line, const TrainingJob& job, TrainingSpace& space) {
  const parallel::ParallelLayout& sizes = job.layout.sizes;
  const auto add = [&](const char* flag, const auto& value, auto& values) {
    if (!line.has(flag)) add_value(value, values);
  };
  add("tensor-parallel", sizes.tensor, space.tensor);
  add("context-parallel", sizes.context, space.context);
  add("pipeline-parallel", sizes.pipeline, space.pipeline);
  add("virtual-pipeline", sizes.virtual_pipeline, space.virtual_pipeline);
  add("expert-parallel", sizes.expert, space.expert);
  add("expert-tensor-parallel", sizes.expert_tensor, space.expert_tensor);
  add("micro-batch", job.layout.micro_batch, space.micro_batch);
  add("zero", job.states.zero, space.zero);
  if (!line.has("recompute")) add_recompute(job.recompute, space);
  const bool is_placed =
      std::any_of(space.ranks_per_domain.begin(), space.ranks_per_domain.end(), [&](int ranks) {
        TrainingJob other = space.base;
        other.ranks_per_domain = ranks;
        return other.placed_ranks() == job.placed_ranks();
      });
  if (!is_placed) add("ranks-per-domain", job.ranks_per_domain, space.ranks_per_domain);
}

// Jobs of a search with each value of what an option's effect depends on (job::JobOption::idle).
std::vector<TrainingJob> varied_jobs(const TrainingSpace& space) {
  TrainingJob first = space.base;
  parallel::ParallelLayout& sizes = first.layout.sizes;
  sizes.tensor = space.tensor.front();
  sizes.context = space.context.front();
  sizes.expert = space.expert.front();
  first.recompute = space.recompute.front();
  std::vector<TrainingJob> jobs = {first};
  for (const int tensor : space.tensor) {
    jobs.push_back(first);
    jobs.back().layout.sizes.tensor = tensor;
  }
  for (const int context : space.context) {
    jobs.push_back(first);
    jobs.back().layout.sizes.context = context;
  }
  for (const int expert : space.expert) {
    for (const model::Precision precision : space.precision) {
      jobs.push_back(first);
      jobs.back().layout.sizes.expert = expert;
      jobs.back().states.precision = precision;
    }
  }
  for (const model::Recompute& recompute : space.recompute) {
    jobs.push_back(first);
    jobs.back().recompute = recompute;
  }
  return jobs;
}

// On what has no effect in any candidate, of what was typed.
void note_idle_options(const CommandLine& line, const TrainingSpace& space) {
  scenario::OptionValues asked = first_values(line).values;
  for (const std::string& name : line.of_row) asked.erase(name);
  for (const std::string& text : job::idle_notes(asked, varied_jobs(space))) note(text);
}

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
    TrainingJob job = resolved_job(start.line, true).job;
    job.host.factor = request.search.space.base.host.factor;
    training::check_job(job);
    if (!job.routing && request.search.space.routings.front()) {
      job = request.drawn(job);
      if (job.routing) yours.command += " --routing-draws per-layer";
    }
    study::FoundStep found{job, {}, 0, 0, {}, {}};
    study::set_step(request.search, training::training_step(job, nullptr, false), found);
    study::add_host_gain(request.search, found);
    yours.step = found;
  } catch (const Error& error) {
    yours.refusal = error.what();
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

// A share without "%" of a tenth or more is rarely meant: 0.5 is often typed for half a per cent.
void check_max_loss(const CommandLine& line) {
  constexpr double least_doubtful = 0.1;
  const std::string text = line.get("max-loss", "0");
  const auto share = parse_number<double>(text);
  if (!share || *share < least_doubtful || *share > 1) return;
  throw UsageError(fmt::format("--max-loss {}: per cent, or a share of 1? Give {:g}% or {:g}%",
                               text, *share, 100 * *share));
}

}  // namespace

std::vector<std::string> list_of(const CommandLine& line, const std::string& flag) {
  const std::string list = line.get(flag);
  std::vector<std::string> values;
  const auto add = [&](std::string_view value) {
    if (std::find(values.begin(), values.end(), value) == values.end()) values.emplace_back(value);
  };
  if (flag == "capacity-factor") {
    for (const std::string& value : study::expand("--" + flag, list, true)) add(value);
    return values;
  }
  // Modules of recomputation are separated by commas themselves.
  for (const std::string_view value : split(list, flag == "recompute" ? '/' : ',')) add(value);
  return values;
}

SearchLimits requested_limits(const CommandLine& line) {
  SearchLimits limits;
  if (line.has("best")) {
    limits.best = static_cast<std::size_t>(parse_whole("--best", line.get("best"), 1, 1000));
  }
  check_max_loss(line);
  limits.max_loss = share_of(line, "max-loss", 0, 0, 0.5);
  limits.memory_share = share_of(line, "memory-share", limits.memory_share, 0.01, 90);
  if (line.has("min-speed")) {
    limits.min_speed =
        static_cast<double>(parse_whole("--min-speed", line.get("min-speed"), 0, 1'000'000'000));
  }
  return limits;
}

std::vector<Flag> recommend_flags() {
  std::vector<Flag> flags;
  for (Flag flag : train_flags()) {
    // The search divides layers; a capacity per rank has no bounds.
    if (job::job_option_named(flag.name).in_search == job::InSearch::refused) continue;
    if (flag.name == "global-batch") flag.default_text = "16 per GPU";
    if (flag.name == "gpus") {
      flag.help += "; of several, 32,64 or 32:128:32, the best on each, and how far scaling pays";
    }
    if (is_searched(flag.name)) {
      const bool fixed =
          flag.name == "dispatcher" || flag.name == "ep-overlap" || flag.name == "precision";
      flag.help = (flag.name == "recompute" ? "values to search, separated by /: "
                                            : "values to search, separated by commas: ") +
                  flag.help;
      if (flag.name == "capacity-factor") {
        flag.default_text = "dropless; also 0.5 to 1.5 with --max-loss";
      } else if (flag.name != "router" && !fixed) {
        flag.default_text = "what is usual";
      }
    }
    flags.push_back(flag);
  }
  flags.push_back(software_flag());
  for (const Flag& flag : run_cost_flags()) flags.push_back(flag);
  flags.push_back(megatron_input());
  flags.back().help =
      "a launch script or YAML of Megatron-LM to start from: its model, batch, precision, "
      "dispatcher and routing, below those given here; its layout is compared with the best";
  flags.push_back(from_flag());
  flags.back().help =
      "the same of a step in a row of a CSV that moesim wrote, 1 is the first: train.csv:3";
  flags.push_back(config_flag());
  for (const Flag& flag : own_flags()) flags.push_back(flag);
  return flags;
}

RecommendRequest requested_search(const SearchSource& source) {
  const CommandLine& line = source.line;
  requested_run_cost(line);  // an error before the search, not after it
  if (line.has("replicas")) {
    throw UsageError("--replicas: of --mode prefill: training steps are drawn once: leave it out");
  }
  TrainingJob base = resolved_job(first_values(line), true).job;
  training::check_decoder(base);
  TrainingJob usual = base;  // with a layout that routing is checked with
  base.layout.sizes = {};
  base.layout.sizes.gpus = static_cast<int>(requested_whole(line, "gpus", 32));
  base.layout.stages.reset();
  base.layout.recomputes_experts = false;
  base.layout.global_batch =
      requested_whole(line, "global-batch", sequences_per_gpu * base.layout.sizes.gpus);
  check_run(requested_run_cost(line),
            static_cast<double>(base.layout.global_batch * base.layout.sequence_length));
  base.graphs = value_in(training::graphs_names, line.get("cuda-graphs", "none"), "--cuda-graphs");
  if (line.has("expert-load")) {
    job::Resolution at{line.values, base};
    job::job_option_named("expert-load").set(line.get("expert-load"), at);
    training::TrainingJob routed = base;
    // Of these `base` has no values yet.
    for (const char* drawn : {"capacity-factor", "router", "max-loss"}) {
      if (line.has(drawn)) routed.routing.emplace();
    }
    const auto refusal = training::expert_load_refusal(routed);
    if (routed.routing && refusal) throw UsageError(*refusal);
  }
  RecommendRequest request;
  request.line = line;
  TrainingSearch& search = request.search;
  if (auto own = own_software(line, base)) {
    base.host.factor = own->host_factor();
    search.software = std::make_shared<const uncertainty::StepSoftware>(std::move(*own));
  }
  request.software = search.software ? search.software->software : line.get("software");
  search.space = study::usual_training_space(base);
  take_lists(line, search.space);
  if (source.start) add_layout(line, resolved_job(source.start->line, true).job, search.space);
  note_idle_options(line, search.space);
  search.space.mtp_depths =
      static_cast<int>(line.has("mtp") ? parse_whole("--mtp", line.get("mtp"), 0, 16) : 0);
  if (search.space.mtp_depths > base.model->mtp_depths) {
    throw UsageError(fmt::format("--mtp {}: {} has {} depths of multi-token prediction",
                                 search.space.mtp_depths, base.typed.model,
                                 base.model->mtp_depths));
  }
  note_left_out(*base.model, base.typed.model);
  if (!line.has("mtp")) note_depths(base, fmt::format("--mtp {}", base.model->mtp_depths));
  const SearchLimits limits = requested_limits(line);
  search.best = limits.best;
  search.max_loss = limits.max_loss;
  search.min_speed = limits.min_speed;
  search.memory_share = limits.memory_share;
  search.chunks_tell_apart = value_in(distinct_names, line.get("distinct", "layout"), "--distinct");
  if (search.best > most_with_twins) search.twin_margin = 0;
  place_experts(line, search.space, usual);
  take_routings(line, usual, search.max_loss > 0, request);
  if (source.start) take_yours(*source.start, request);
  note_dialect(line, search.space);
  search.jobs = chosen_jobs(line);
  search.drawn = std::make_shared<study::DrawnRoutings>();
  return request;
}

TrainingJob RecommendRequest::drawn(const TrainingJob& job) const {
  CommandLine drawn = line;
  drawn.values["routing-draws"] = "per-layer";
  for (const char* searched : {"router", "capacity-factor"}) drawn.values.erase(searched);
  TrainingJob found = job;
  job::RoutingNotes ignored;
  found.routing = job::drawn_routing(drawn.values, job, ignored);
  return found;
}

std::string RecommendRequest::command_of(const study::FoundStep& found) const {
  const TrainingJob& job = found.job;
  const parallel::LayoutRequest& request = job.layout;
  const parallel::ParallelLayout& sizes = request.sizes;
  std::vector<std::string> words{"moesim train"};
  const auto add = [&](const char* flag, const std::string& value) {
    words.push_back(fmt::format("--{} {}", flag, shell_word(value)));
  };
  const auto add_size = [&](const char* flag, std::int64_t size) {
    if (size != 1) add(flag, fmt::format("{}", size));
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
  if (job.states.precision != model::Precision::bf16) {
    add("precision", model::name_of(job.states.precision));
  }
  add("global-batch", fmt::format("{}", request.global_batch));
  add_size("tensor-parallel", sizes.tensor);
  add_size("context-parallel", sizes.context);
  add_size("pipeline-parallel", sizes.pipeline);
  if (request.stages) {
    add("pipeline-layout", request.stages->text());
  } else {
    add_size("virtual-pipeline", sizes.virtual_pipeline);
  }
  add("expert-parallel", fmt::format("{}", sizes.expert));
  add_size("expert-tensor-parallel", sizes.expert_tensor);
  add_size("micro-batch", request.micro_batch);
  if (job.ranks_per_domain > 0) add("ranks-per-domain", fmt::format("{}", job.ranks_per_domain));
  if (request.expert_overlap) add("ep-overlap", "on");
  if (job.dispatcher) add("dispatcher", job.typed.dispatcher);
  for (const auto& [flag, value] : routings[found.routing].values) add(flag.c_str(), value);
  if (const std::string again = model::name_of(job.recompute); again != "none") {
    add("recompute", again);
  }
  if (job.states.zero != 1) add("zero", fmt::format("{}", job.states.zero));
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace moesim::tool
