#include "tools/moesim/recommend/request/search_source.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <utility>

#include "sim/job/job_options.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/shell_word.hpp"
#include "tools/moesim/command_line/config.hpp"
#include "tools/moesim/megatron/megatron_options.hpp"
#include "tools/moesim/recommend/request/search_limits.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

using training::TrainingJob;

// What was typed of the step itself: no choice of the search, and one value. GPUs may be a range;
// routers have colons of their own.
bool is_of_step(const job::JobOption& option, const std::string& text) {
  if (is_layout_choice(option)) return false;
  if (option.name == "gpus") return text.find_first_of(",:") == std::string::npos;
  if (option.name == "capacity-factor") {
    return text != "dropless" && text.find_first_of(",:") == std::string::npos;
  }
  return option.in_search != job::InSearch::searched || text.find(',') == std::string::npos;
}

StartingPoint starting_point(const CommandLine& line, const std::string& flag) {
  StartingPoint start;
  const std::string value = line.get(flag);
  start.name = std::filesystem::path(value).filename().string();
  start.command = fmt::format("moesim train --{} {}", flag, shell_word(value));
  const auto take = [&](const std::string& name) {
    start.line.values[name] = line.get(name);
    start.command += fmt::format(" --{} {}", name, shell_word(line.get(name)));
  };
  for (const job::JobOption& option : job::job_options()) {
    if (line.has(option.name) && is_of_step(option, line.get(option.name))) take(option.name);
  }
  if (line.has("software")) take("software");
  start.line.values[flag] = value;
  if (flag == "from") {
    take_config(train_command(), start.line);
  } else {
    start.line = with_megatron(train_command(), start.line);
    start.line.values.erase(flag);
  }
  return start;
}

// The job of a row with what its other options follow from, and of the rest the defaults.
TrainingJob usual_job(const CommandLine& row, scenario::DocumentCache& documents) {
  CommandLine line;
  for (const char* name : {"model", "profile", "gpus", "precision", "router", "capacity-factor",
                           "router-dialect", "routing-draws"}) {
    if (row.has(name)) line.values[name] = row.get(name);
  }
  return resolved_job(line, true, &documents).job;
}

// Whether an option of routing, which a job has no column of, has its usual value.
bool is_usual_routing(const job::JobOption& option, const CommandLine& row) {
  const std::string text = row.get(option.name);
  if (option.name == "fidelity") return true;  // as it was resolved for the tokens of that layout
  if (option.name == "top-k") return row.get("router") == "top" + text;
  return row.get("router-dialect", "paper") == "paper" && text == option.default_text;
}

// A row has all options: those that say what is so without them would be noise in commands.
bool is_usual(const job::JobOption& option, const CommandLine& row, const TrainingJob& job,
              const TrainingJob& usual) {
  static const std::set<std::string> of_usual = {
      "model", "profile", "gpus", "precision", "router", "capacity-factor", "routing-draws"};
  // A time of the host that was given is not assumed, whatever it is.
  static const std::set<std::string> of_host = {"launch-us", "host-read-us", "step-overhead-ms"};
  if (of_usual.contains(option.name) || of_host.contains(option.name)) return false;
  if (!option.value) return is_usual_routing(option, row);
  return option.value(job) == option.value(usual);
}

// Which schedule follows from virtual stages, which are searched.
bool is_usual_schedule(const job::JobOption& option, const std::string& text) {
  return option.name == "pipeline-schedule" && (text == "1f1b" || text == "interleaved");
}

// What of the starting point a search takes.
void take_start(const StartingPoint& start, bool is_row, scenario::DocumentCache& documents,
                CommandLine& line) {
  const TrainingJob job = resolved_job(start.line, true, &documents).job;
  std::optional<TrainingJob> usual;
  if (is_row) usual = usual_job(start.line, documents);
  for (const job::JobOption& option : job::job_options()) {
    if (line.has(option.name) || !start.line.has(option.name)) continue;
    const std::string text = start.line.get(option.name);
    if (option.name == "ep-overlap" && job.layout.expert_overlap) {
      line.values["ep-overlap"] = "on,off";
    }
    if (option.name == "rank-capacity") {
      note(fmt::format("note: --rank-capacity {} of {} is not searched: dropless in its place",
                       text, start.name));
    }
    const bool is_left = is_layout_choice(option) || option.in_search == job::InSearch::refused ||
                         is_usual_schedule(option, text) ||
                         (usual && is_usual(option, start.line, job, *usual));
    if (is_left) continue;
    line.values[option.name] = text;
    if (start.line.of_row.contains(option.name)) line.of_row.insert(option.name);
  }
  std::vector<Flag> kept = run_cost_flags();
  kept.push_back(software_flag());
  for (const Flag& flag : kept) {
    if (line.has(flag.name) || !start.line.has(flag.name)) continue;
    line.values[flag.name] = start.line.get(flag.name);
  }
  if (!line.has("global-batch")) {
    line.values["global-batch"] = fmt::format("{}", job.layout.sequences());
  }
  const int depths = job.layout.stages ? job.layout.stages->mtp() : 0;
  if (depths > 0 && !line.has("mtp")) line.values["mtp"] = fmt::format("{}", depths);
}

// How the capacities of a search pad, choose and drop, where the script that it starts from has
// none: as they would in the script. `typed`: with --megatron.
void take_capacity(const CommandLine& typed, CommandLine& line) {
  const bool has_capacity = line.has("capacity-factor") ? line.get("capacity-factor") != "dropless"
                                                        : requested_limits(line).max_loss > 0;
  if (!has_capacity) return;
  for (const auto& option : megatron_capacity(typed)) {
    if (line.values.insert(option).second) line.of_row.insert(option.first);
  }
}

}  // namespace

CommandLine with_config(CommandLine typed) {
  if (!typed.has("config")) return typed;
  CommandLine line = typed;
  line.values.erase("from");  // is no option below others here
  take_config(recommend_command(), line);
  typed.values.erase("config");
  if (typed.has("from")) line.values.erase("megatron");  // of the file: another step
  for (const auto& option : line.values) typed.values.insert(option);
  return typed;
}

SearchSource requested_source(const CommandLine& typed,
                              std::shared_ptr<scenario::DocumentCache> documents) {
  SearchSource source{typed, std::nullopt, std::move(documents)};
  CommandLine& line = source.line;
  const bool from = line.has("from");
  if (from && line.has("megatron")) {
    throw UsageError("--megatron with --from: each says which step to start from: give one");
  }
  if (!from && !line.has("megatron")) return source;
  const std::string flag = from ? "from" : "megatron";
  source.start = starting_point(line, flag);
  line.values.erase(flag);
  take_start(*source.start, from, *source.documents, line);
  const bool has_experts =
      resolved_job(source.start->line, true, source.documents.get()).job.model->moe.has_value();
  if (!from && has_experts) take_capacity(typed, line);
  return source;
}

}  // namespace moesim::tool
