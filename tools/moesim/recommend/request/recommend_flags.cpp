#include "tools/moesim/recommend/request/recommend_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "sim/base/text.hpp"
#include "sim/job/job_options.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/search/searched_choices.hpp"
#include "sim/study/sweep/grid.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/command_line/config.hpp"
#include "tools/moesim/megatron/megatron_options.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

// Flags of the search alone.
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
       "token loss (counted_loss: of the model's own router what a capacity drops) that is "
       "acceptable, such as 0.5%; above 0, routing is drawn, and capacity factors are searched "
       "too, "
       "with and without rectification"},
      {"min-speed", "N", "0", "tokens/s/GPU that it must reach"},
      {"memory-share", "X", "0.9", "of a GPU's memory that a step may take; libraries need some"},
      {"mtp", "N", "0", "depths of multi-token prediction to train, behind the last layer"},
      {"time-limit", "TIME", "none",
       "print the best found after 90s, 5min or 2h, and how much faster the others may be, as an "
       "interrupt does; exit code 124 where they are not proven"},
      {"all", "FILE.csv", "none", "simulate every candidate as well, a row each"},
      {"chart", "FILE", "none",
       "speed against token loss of the best and of the front: .png, .pdf or .svg"},
      format_flag(),
      out_flag(),
      jobs_flag()};
}

// Options of a forward pass, as `simulate` describes them.
std::vector<Flag> prefill_flags() {
  std::vector<Flag> flags;
  for (const scenario::Option& option : scenario::scenario_options()) {
    if (!is_of_prefill_alone(option.name)) continue;
    flags.push_back({option.name, option.placeholder, option.default_text, option.help,
                     option.values, "Options of --mode prefill alone, lists of values to search"});
  }
  return flags;
}

}  // namespace

bool is_scenario_option(const std::string& flag) {
  const auto& options = scenario::scenario_options();
  return std::any_of(options.begin(), options.end(),
                     [&](const scenario::Option& option) { return option.name == flag; });
}

bool is_of_prefill_alone(const std::string& flag) {
  // The first two are of the search, the others of training steps.
  static const std::set<std::string> others = {"mode", "replicas", "checkpointing", "overlap"};
  const auto& options = job::job_options();
  return is_scenario_option(flag) && !others.contains(flag) &&
         std::none_of(options.begin(), options.end(),
                      [&](const job::JobOption& option) { return option.name == flag; });
}

bool is_searched(const std::string& flag) {
  return job::job_option_named(flag).in_search == job::InSearch::searched;
}

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
  const study::SearchedChoice* choice = study::searched_choice(flag);
  for (const std::string_view value : split(list, choice ? choice->traits().separator : ',')) {
    add(value);
  }
  return values;
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
    if (flag.name == "profile") {
      flag.help += "; of several, h200-sxm,b200-sxm, the best on each, and which is cheaper";
    }
    if (is_searched(flag.name)) {
      const study::SearchedChoice* choice = study::searched_choice(flag.name);
      const char separator = choice ? choice->traits().separator : ',';
      flag.help = fmt::format("values to search, separated by {}: {}",
                              separator == ',' ? "commas" : std::string(1, separator), flag.help);
      if (choice && choice->has_usual_values()) flag.default_text = "what is usual";
      if (flag.name == "capacity-factor") {
        flag.default_text = "dropless; also 0.5 to 1.5 with --max-loss";
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
  for (const Flag& flag : prefill_flags()) flags.push_back(flag);
  return flags;
}

}  // namespace moesim::tool
