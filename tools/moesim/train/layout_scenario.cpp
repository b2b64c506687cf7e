#include "tools/moesim/train/layout_scenario.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <set>

#include "sim/base/contains.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/job/documents.hpp"
#include "sim/job/job_options.hpp"
#include "sim/report/formats.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/command_line/config.hpp"
#include "tools/moesim/scenario/scenario_notes.hpp"
#include "tools/moesim/train/layout_row.hpp"
#include "tools/moesim/train/replicas.hpp"
#include "tools/moesim/train/train_grid.hpp"
#include "tools/moesim/train/train_journal.hpp"
#include "tools/moesim/train/train_request.hpp"
#include "tools/moesim/train/train_step.hpp"

namespace moesim::tool {
namespace {

// Options of a scenario that have a meaning beside a layout without being options of a job.
constexpr const char* translated[] = {"checkpointing", "mode", "tokens-per-gpu", "replicas"};
// Options of a scenario whose defaults hold, where a job has others.
constexpr const char* defaults_of_scenario[] = {"profile", "micro-batch"};

bool is_job_option(const std::string& name) { return job::find_job_option(name) != nullptr; }

bool is_scenario_option(const std::string& name) {
  const auto& options = scenario::scenario_options();
  return std::any_of(options.begin(), options.end(),
                     [&](const scenario::Option& option) { return option.name == name; });
}

// Whether a job has the option and a scenario does not.
bool is_of_layouts(const std::string& name) {
  return (is_job_option(name) || name == software_option) && !is_scenario_option(name);
}

// A dispatcher that only a job has.
bool names_gathering(const std::string& dispatchers) {
  return contains(split(dispatchers, ','), std::string_view(job::gathering_dispatcher));
}

// The value behind "--NAME", or after the sign of "--NAME=value"; "": not there.
std::string value_of(const std::vector<std::string>& arguments, const std::string& name) {
  for (std::size_t at = 0; at < arguments.size(); ++at) {
    if (arguments[at] == "--" + name && at + 1 < arguments.size()) return arguments[at + 1];
    if (arguments[at].starts_with("--" + name + "=")) return arguments[at].substr(name.size() + 3);
  }
  return "";
}

// Whether "sweep.csv:3" is a row of a training job, of these commands or of `train`.
bool is_row_of_layout(const std::string& row) {
  const std::string file = row.substr(0, row.rfind(':'));
  return contains(CsvTable::load(file).columns, "tensor_parallel");
}

// The first option that asks for a layout; "": none does.
std::string layout_option(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    const std::string name = argument.substr(2, argument.find('=') - 2);
    if (is_of_layouts(name)) return argument.substr(0, argument.find('='));
  }
  if (names_gathering(value_of(arguments, "dispatcher"))) return "--dispatcher";
  // What is wrong with the files, the command itself says.
  try {
    if (const std::string file = value_of(arguments, "config"); !file.empty()) {
      for (const auto& [name, value] : options_in_config(file)) {
        const bool gathers = name == "dispatcher" && names_gathering(value);
        if (is_of_layouts(name) || gathers) return "--" + name;
      }
    }
    const std::string row = value_of(arguments, "from");
    if (!row.empty() && is_row_of_layout(row)) return "--from " + row;
  } catch (const Error&) {
    return "";
  }
  return "";
}

Flag flag_of(const scenario::Option& option) {
  Flag flag{option.name, option.placeholder, option.default_text, option.help, option.values};
  flag.is_number = option.is_number();
  return flag;
}

// Those of a scenario first: the grid varies them slowest, in its order.
std::vector<Flag> flags_with_layout(const Command& command) {
  const std::vector<Flag> of_job = train_flags();
  std::vector<Flag> flags;
  for (const scenario::Option& option : scenario::scenario_options()) {
    const auto found = std::find_if(of_job.begin(), of_job.end(),
                                    [&](const Flag& flag) { return flag.name == option.name; });
    flags.push_back(found != of_job.end() ? *found : flag_of(option));
    if (contains(defaults_of_scenario, option.name)) {
      flags.back().default_text = option.default_text;
    }
  }
  for (const Flag& flag : of_job) {
    if (!is_scenario_option(flag.name)) flags.push_back(flag);
  }
  flags.push_back(software_flag());
  for (const Flag& flag : command.flags) flags.push_back(flag);
  return flags;
}

// The first typed option that asks for a layout: "--tensor-parallel".
std::string layout_option_of(const CommandLine& line) {
  const auto found = std::find_if(line.values.begin(), line.values.end(), [&](const auto& typed) {
    return is_of_layouts(typed.first) && !line.of_row.contains(typed.first);
  });
  if (found != line.values.end()) return "--" + found->first;
  return names_gathering(line.get("dispatcher")) ? "--dispatcher allgather" : "--from";
}

// What a scenario has and a training job does not.
[[noreturn]] void refuse(const CommandLine& line, const std::string& option,
                         const std::string& why) {
  const std::string value = line.get(option);
  throw UsageError(
      fmt::format("--{}{}{} with {}: such a step is priced as 'moesim train' prices it, {}", option,
                  value.empty() ? "" : " ", value, layout_option_of(line), why));
}

// The model and the sequence length that the line has: no more is read, as each row asks.
training::TrainingJob plain_job(const CommandLine& line) {
  scenario::OptionValues values;
  for (const char* option : {"model", "sequence-length"}) {
    if (line.has(option)) values[option] = line.get(option);
  }
  constexpr int ranks_per_domain = 8;  // of no effect on these
  return job::resolve_layout(values, ranks_per_domain);
}

// Throws unless a job has the option, or it has the value that all jobs have.
void check_option(const CommandLine& line, const std::string& name) {
  const std::string value = line.get(name);
  if (name == "mode") {
    if (value == "train") return;
    refuse(line, name, "which has training steps alone: leave one of the two out");
  }
  if (is_job_option(name) || contains(translated, name)) return;
  if (name == "experts") {
    const training::TrainingJob job = plain_job(line);
    if (job.model->moe && value == fmt::format("{}", job.model->moe->experts)) return;
    refuse(line, name, "which has the model's experts: write a model with as many");
  }
  const scenario::Option& option = scenario::option_named(name);
  // Rows of a scenario have the defaults, too.
  if (line.of_row.contains(name) && value == option.default_text) return;
  if (name == "fusion" || name == "expert-products") {
    refuse(line, name, "with the kernels of Megatron-Core: leave one of the two out");
  }
  if (name == "overlap") {
    if (value == "gradient") return;
    refuse(line, name, "with gradients under the backward pass: leave one of the two out");
  }
  if (name == "ir-compute") {
    if (value == rectified_with) return;
    refuse(line, name,
           fmt::format("with rectified rows among the others, as {0}: give {0}", rectified_with));
  }
  if (value == option.default_text) return;
  const std::string own = report::text_of(option.cell(scenario_of(line)));
  if (value == own) return;
  refuse(line, name,
         fmt::format("which has no --{}: it is {}; leave one of the two out", name,
                     own.empty() ? option.default_text : own));
}

void check_command_flags(const CommandLine& line) {
  for (const char* flag : {"losses", "baseline", "shard"}) {
    if (line.has(flag)) {
      refuse(line, flag, fmt::format("without --{}: leave one of the two out", flag));
    }
  }
}

std::int64_t size_of(const CommandLine& line, const char* option, std::int64_t fallback) {
  return parse_number<std::int64_t>(line.get(option)).value_or(fallback);
}

// What --tokens-per-gpu says of the micro-batch.
void take_tokens(CommandLine& line) {
  if (!line.has("tokens-per-gpu")) return;
  const bool is_of_row = line.of_row.contains("tokens-per-gpu");
  if (is_of_row || line.has("micro-batch")) {
    if (is_of_row) return;  // the row has the micro-batch too
    throw UsageError("--tokens-per-gpu with --micro-batch: with a layout one of them says it all");
  }
  const std::int64_t sequence = plain_job(line).layout.sequence_length;
  const std::int64_t sharing = std::max<std::int64_t>(1, size_of(line, "tensor-parallel", 1)) *
                               std::max<std::int64_t>(1, size_of(line, "context-parallel", 1));
  const std::int64_t tokens =
      parse_whole("--tokens-per-gpu", line.get("tokens-per-gpu"), 1, std::int64_t{1} << 40);
  if (tokens * sharing % sequence != 0) {
    throw UsageError(fmt::format(
        "--tokens-per-gpu {}: {} whole sequences of {} tokens: give --micro-batch, or another "
        "--sequence-length",
        tokens, sharing == 1 ? "a GPU has" : fmt::format("{} GPUs share", sharing), sequence));
  }
  line.values["micro-batch"] = fmt::format("{}", tokens * sharing / sequence);
}

// What a trace says of GPUs and tokens, as in a scenario without a layout: its ranks are those of a
// pipeline stage, and TP x CP of them share sequences. Nothing that is typed, or that no layout
// has.
void take_trace(CommandLine& line) {
  if (!line.get("routing").starts_with("trace")) return;
  scenario::OptionValues values;
  for (const char* option : {"model", "routing"}) {
    if (line.has(option)) values[option] = line.get(option);
  }
  scenario::DocumentCache documents;
  const scenario::Scenario recorded = scenario::fill_in(values, documents, scenario::Use::routing);
  const routing::ScoreSource& scores = recorded.scores;
  if (scores.trace == nullptr || scores.trace->per() == routing::Trace::Per::rank) return;
  const routing::TraceShape& shape = scores.trace->shape();
  std::string taken;
  const auto take = [&](const char* option, std::int64_t value) {
    line.values[option] = fmt::format("{}", value);
    taken += fmt::format(" --{} {}", option, value);
  };
  if (shape.ranks > 1 && !line.has("gpus")) {
    take("gpus", shape.ranks * size_of(line, "pipeline-parallel", 1));
  }
  // As many tokens as it has, typed, are no other than it says.
  const bool has_tokens =
      line.has("micro-batch") || line.has("sequence-length") ||
      (line.has("tokens-per-gpu") && line.get("tokens-per-gpu") != fmt::format("{}", shape.tokens));
  if (scores.kind == routing::ScoreSource::Kind::trace && !has_tokens) {
    const std::int64_t tokens =
        shape.tokens * size_of(line, "tensor-parallel", 1) * size_of(line, "context-parallel", 1);
    const std::int64_t usual = plain_job(line).layout.sequence_length;
    const std::int64_t sequence = tokens % usual == 0 ? usual : tokens;
    if (sequence > usual) return;  // an error says what would do
    line.values.erase("tokens-per-gpu");
    if (sequence != usual) take("sequence-length", sequence);
    take("micro-batch", tokens / sequence);
  }
  if (!taken.empty()) note(fmt::format("note: from {}:{}", scores.name(), taken));
}

void take_checkpointing(CommandLine& line) {
  const std::string value = line.get("checkpointing", "none");
  if (value != "none" && value != "full") {
    throw UsageError(
        fmt::format("--checkpointing: unknown value '{}'; choose from none, full", value));
  }
  const bool is_typed = line.has("checkpointing") && !line.of_row.contains("checkpointing");
  const std::string recompute = line.get("recompute", value);
  if (is_typed && (recompute == "full") != (value == "full")) {
    throw UsageError(fmt::format(
        "--checkpointing {} with --recompute {}: full is the same of both: leave --checkpointing "
        "out",
        value, recompute));
  }
  if (value == "full") line.values.emplace("recompute", value);
}

// As many micro-batches as the pipeline has stages, one without: what fills them once.
void set_global_batch(CommandLine& line) {
  if (line.has("global-batch")) return;
  const std::int64_t pipeline = size_of(line, "pipeline-parallel", 1);
  const std::int64_t ranks =
      size_of(line, "tensor-parallel", 1) * size_of(line, "context-parallel", 1) * pipeline;
  const std::int64_t gpus = size_of(line, "gpus", 32);
  if (ranks < 1 || gpus % ranks != 0) return;  // an error of the layout follows
  line.values["global-batch"] =
      fmt::format("{}", gpus / ranks * pipeline * size_of(line, "micro-batch", 1));
}

// Routing as a scenario without layout has it: popularity drawn, and a capacity where the router
// has one.
void set_routing(CommandLine& line) {
  if (!plain_job(line).model->moe || line.get("routing-draws") == "balanced") return;
  // A row of `train` whose experts are balanced.
  if (line.of_row.contains("tensor-parallel") && !line.has("routing") && !line.has("router"))
    return;
  scenario::OptionValues values;
  for (const char* option : {"model", "router", "top-k", "router-dialect", "capacity-convention"}) {
    if (line.has(option)) values[option] = line.get(option);
  }
  scenario::DocumentCache documents;
  const routing::RouterConfig router =
      scenario::fill_in(values, documents, scenario::Use::routing).router;
  line.values.emplace("routing", scenario::option_named("routing").default_text);
  if (!router.has_capacity()) return;
  line.values.emplace("capacity-factor", router.capacity_factor.text());
  line.values.emplace("capacity-convention", routing::name_of(router.capacity_convention));
}

// The line as `train` takes it, whose row has the columns of a scenario.
CommandLine as_job(CommandLine line) {
  for (const scenario::Option& option : scenario::scenario_options()) {
    if (line.has(option.name)) check_option(line, option.name);
  }
  take_trace(line);
  take_tokens(line);
  take_checkpointing(line);
  for (const char* option : defaults_of_scenario) {
    line.values.emplace(option, scenario::option_named(option).default_text);
  }
  set_global_batch(line);
  set_routing(line);
  return line;
}

void note_other_prices(const CommandLine& line) {
  note(fmt::format(
      "note: {}: priced as 'moesim train' prices a step: compare it with such steps alone",
      layout_option_of(line)));
}

// Of a line without what as_job() fills in. Lines that no scenario can be have their own errors.
void note_capacity(const CommandLine& line, const std::vector<CommandLine>& points) {
  static const char* const taken[] = {"model",           "experts",        "router",
                                      "top-k",           "router-dialect", "capacity-convention",
                                      "capacity-factor", "micro-batch",    "sequence-length"};
  if (!line.has("capacity-factor")) return;
  scenario::DocumentCache documents;
  std::vector<scenario::Scenario> scenarios;
  for (const CommandLine& point : points) {
    scenario::OptionValues values;
    for (const char* option : taken) {
      if (point.has(option)) values[option] = point.get(option);
    }
    try {
      scenarios.push_back(scenario::fill_in(values, documents, scenario::Use::routing));
    } catch (const Error&) {
      continue;
    }
  }
  std::vector<const scenario::Scenario*> known;
  for (const scenario::Scenario& each : scenarios) {
    if (each.has_moe()) known.push_back(&each);
  }
  note_small_capacity(line.scenario(), known);
}

// Speeds at different batches share what a step costs once among different numbers of tokens.
void note_batches(const CommandLine& line, const TrainGrid& grid) {
  if (line.has("global-batch")) return;
  std::set<std::int64_t> batches;
  for (const CommandLine& point : grid.lines) {
    if (point.has("global-batch")) batches.insert(size_of(point, "global-batch", 0));
  }
  if (batches.size() < 2) return;
  note(fmt::format(
      "note: rows have global batches of {} to {} sequences: --global-batch N gives all the same",
      *batches.begin(), *batches.rbegin()));
}

void note_replicas(const CommandLine& line) {
  if (requested_replicas(line) == 1) return;
  note(fmt::format("note: the step is the median of {} replicas, losses are their means",
                   line.get("replicas")));
}

ExitCode run_simulate(const CommandLine& line) {
  check_command_flags(line);
  const TrainGrid grid = train_grid(line, flags_with_layout(simulate_command()));
  if (!grid.is_one()) {
    const std::string& flag = grid.flags.front().name;
    throw UsageError(
        fmt::format("--{}: '{}' is a list or a range, and here is room for one value: "
                    "'moesim sweep' takes both",
                    flag, line.get(flag)));
  }
  const ExitCode code = run_train_step(as_job(line), layout_row);
  note_capacity(line, grid.lines);
  note_other_prices(line);  // below the result: of no help where an error ends the command
  note_replicas(line);
  return code;
}

// The lines of the grid as jobs; those that cannot be have their reason. Throws where none can be.
void take_jobs(TrainGrid& grid) {
  grid.refusals.assign(grid.lines.size(), "");
  const EachNoteOnce once;
  std::exception_ptr first;
  for (std::size_t at = 0; at < grid.lines.size(); ++at) {
    try {
      grid.lines[at] = as_job(grid.lines[at]);
    } catch (const UnknownDocument&) {
      throw;  // of the command line, which knows the flag
    } catch (const UnreadableFile&) {
      throw;
    } catch (const Error& error) {
      grid.refusals[at] = error.what();
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (!contains(grid.refusals, std::string())) std::rethrow_exception(first);
}

ExitCode run_sweep(const CommandLine& line) {
  check_command_flags(line);
  TrainGrid grid = train_grid(line, flags_with_layout(sweep_command()));
  const std::vector<CommandLine> points = grid.lines;
  take_jobs(grid);
  note_batches(line, grid);
  const ExitCode code = run_train_grid(line, grid, layout_row);
  note_capacity(line, points);
  note_other_prices(line);
  note_replicas(line);
  return code;
}

}  // namespace

std::optional<Command> command_with_layout(const Command& command,
                                           const std::vector<std::string>& arguments) {
  const bool is_sweep = command.name == "sweep";
  if (!is_sweep && command.name != "simulate") return std::nullopt;
  if (layout_option(arguments).empty()) return std::nullopt;
  Command with_layout = command;
  with_layout.flags = flags_with_layout(command);
  with_layout.takes_scenario = false;
  with_layout.run = is_sweep ? run_sweep : run_simulate;
  return with_layout;
}

}  // namespace moesim::tool
