#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/scenario/options.hpp"

namespace moesim::tool {

// What may be typed, for completion alone: asked when a completion script is made.
using Words = std::function<std::vector<std::string>()>;

// A flag of one subcommand, beside the scenario options. An empty `value` makes it a switch.
struct Flag {
  std::string name;  // without the dashes
  std::string value;
  std::string default_text;
  std::string help;
  std::vector<scenario::NamedValue> choices = {};  // what it may be: what that means
  std::string section = "";                        // of a help text; "": the command's own options
  Words words = nullptr;                           // beside its choices
  bool is_number = false;  // of an option that takes lists: ranges of numbers too
};

inline Flag with_words(Flag flag, Words words) {
  flag.words = std::move(words);
  return flag;
}

// A flag's choices, from the names of an enumeration.
template <class Names>
std::vector<scenario::NamedValue> name_choices(const Names& names) {
  std::vector<scenario::NamedValue> choices;
  for (const auto& name : names) choices.push_back({name.name, name.meaning});
  return choices;
}

// The names of an enumeration, for Flag::words.
template <const auto& names>
std::vector<std::string> words_in() {
  std::vector<std::string> words;
  for (const auto& known : names) words.emplace_back(known.name);
  return words;
}

// The column of results that holds its value: "zero", "tensor_parallel".
std::string column_of(const Flag& flag);

// The option that other programs call by that name, such as "tensor-parallel" of "tp"; else as
// typed.
std::string option_meant(const std::string& typed);

// What was typed after the subcommand: the last value of every flag, and the rest.
struct CommandLine {
  std::map<std::string, std::string> values;
  std::vector<std::string> positionals;
  // Values that --from or --megatron took: nobody asked for them one by one.
  std::set<std::string> of_row;

  bool has(const std::string& flag) const { return values.count(flag) != 0; }
  std::string get(const std::string& flag, const std::string& fallback = "") const;
  // The scenario options among the values.
  scenario::OptionValues scenario() const;
  scenario::OptionValues asked_scenario() const;  // without those of a row
};

struct Command {
  std::string name;
  std::string summary;  // one line for the list of commands
  std::string usage;    // after "moesim NAME "
  std::string example;  // one command line that works
  std::vector<Flag> flags;
  bool takes_scenario = false;
  std::size_t max_positionals = 0;
  ExitCode (*run)(const CommandLine& line) = nullptr;
  std::string details = "";  // lines below the summary
  // --config and --from are left to `run`, which takes them apart.
  bool takes_sources_apart = false;
  Words words = nullptr;  // arguments without dashes; "FILE": any file; none given: files alone
  // --cluster alone moves the default of --profile to the cluster's GPUs; false where queries or
  // rows have profiles of their own, and where no kernel is priced.
  bool takes_profile_of_cluster = true;
};

// Every subcommand there is, in the order of the help text.
std::vector<Command> all_commands();

Command profile_command();
Command simulate_command();
Command sweep_command();
Command merge_command();
Command plot_command();
Command route_command();
Command predict_command();
Command layout_command();
Command train_command();
Command recommend_command();
Command validate_command();
Command import_command();
Command doctor_command();
Command calibrate_command();
Command explain_command();
Command options_command();
Command completion_command();

// The scenario options of a command as flags, then its own, then --help.
std::vector<Flag> flags_of(const Command& command);

// Throws UsageError for an unknown flag (with the nearest one), a missing value, a stray argument.
CommandLine parse_arguments(const Command& command, const std::vector<std::string>& arguments);
std::string help_text(const Command& command);
std::string overview();

}  // namespace moesim::tool
