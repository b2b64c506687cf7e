#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/algorithm/string/replace.hpp>
#include <boost/program_options.hpp>
#include <cstdlib>
#include <sstream>

#include "sim/base/shipped.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/command_line/config.hpp"
#include "tools/moesim/command_line/replaced_files.hpp"

namespace moesim::tool {

std::string column_of(const Flag& flag) {
  std::string column = flag.name;
  std::replace(column.begin(), column.end(), '-', '_');
  return column;
}
namespace {

namespace po = boost::program_options;

// Names that other programs have for options.
struct OtherName {
  const char* typed;
  const char* option;
};
constexpr OtherName other_names[] = {{"tp", "tensor-parallel"},
                                     {"tensor-model-parallel-size", "tensor-parallel"},
                                     {"pp", "pipeline-parallel"},
                                     {"pipeline-model-parallel-size", "pipeline-parallel"},
                                     {"vpp", "virtual-pipeline"},
                                     {"ep", "expert-parallel"},
                                     {"expert-model-parallel-size", "expert-parallel"},
                                     {"cp", "context-parallel"},
                                     {"etp", "expert-tensor-parallel"},
                                     {"dtype", "precision"},
                                     {"fp8", "precision"},
                                     {"bf16", "precision"},
                                     {"mbs", "micro-batch"},
                                     {"micro-batch-size", "micro-batch"},
                                     {"batch-size", "micro-batch"},
                                     {"gbs", "global-batch"},
                                     {"global-batch-size", "global-batch"},
                                     {"seq", "sequence-length"},
                                     {"sequence", "sequence-length"},
                                     {"seqlen", "sequence-length"},
                                     {"seq-len", "sequence-length"},
                                     {"seq-length", "sequence-length"},
                                     {"cf", "capacity-factor"},
                                     {"moe-expert-capacity-factor", "capacity-factor"},
                                     {"topk", "top-k"},
                                     {"moe-router-topk", "top-k"},
                                     {"num-experts", "experts"},
                                     {"world-size", "gpus"},
                                     {"num-gpus", "gpus"},
                                     {"gpu", "profile"},
                                     {"hardware", "profile"},
                                     {"output", "out"},
                                     {"threads", "jobs"}};

bool has_flag(const Command& command, const std::string& name) {
  const std::vector<Flag> flags = flags_of(command);
  return std::any_of(flags.begin(), flags.end(),
                     [&](const Flag& flag) { return flag.name == name; });
}

// "moesim sweep, train and layout have": the commands with that flag; empty if there are none.
std::string commands_that_have(const std::string& flag) {
  std::vector<std::string> names;
  for (const Command& command : all_commands()) {
    if (has_flag(command, flag)) names.push_back(command.name);
  }
  if (names.empty()) return {};
  if (names.size() == 1) return fmt::format("moesim {} has", names.front());
  const std::string last = names.back();
  names.pop_back();
  return fmt::format("moesim {} and {} have", fmt::join(names, ", "), last);
}

}  // namespace

std::string option_meant(const std::string& typed) {
  for (const OtherName& other : other_names) {
    if (typed == other.typed) return other.option;
  }
  return typed;
}

namespace {

// The value of an unknown option "--gpu", behind it or behind its sign; "": none.
std::string value_of_unknown(const std::vector<std::string>& arguments, const std::string& option) {
  for (std::size_t at = 0; at < arguments.size(); ++at) {
    if (arguments[at].starts_with(option + "=")) return arguments[at].substr(option.size() + 1);
    if (arguments[at] == option && at + 1 < arguments.size()) return arguments[at + 1];
  }
  return "";
}

// How many, where it is a number, a list or a range of them: else which kind.
bool is_count(const std::string& value) {
  return !value.empty() && value.find_first_not_of("0123456789,:") == std::string::npos;
}

[[noreturn]] void fail_unknown(const Command& command, const std::string& typed,
                               const std::vector<std::string>& arguments) {
  std::vector<std::string> known;
  for (const Flag& flag : flags_of(command)) known.push_back("--" + flag.name);
  const std::string bare = typed.substr(0, typed.find('='));
  const std::string name = bare.substr(std::min(bare.find_first_not_of('-'), bare.size()));
  const bool counts_gpus = name == "gpu" && is_count(value_of_unknown(arguments, bare));
  const std::string meant = counts_gpus ? "gpus" : option_meant(name);
  if (has_flag(command, meant)) {
    throw UsageError(
        fmt::format("unknown option {} (did you mean '--{}'?); 'moesim {} --help' "
                    "lists the options",
                    bare, meant, command.name));
  }
  if (const std::string elsewhere = commands_that_have(meant); !elsewhere.empty()) {
    const std::string both = bare == "--" + meant ? bare : fmt::format("{} (--{})", bare, meant);
    const bool of_train = command.name == "sweep" && has_flag(train_command(), meant);
    const bool is_explained = command.name == "explain" && has_flag(train_command(), meant);
    const bool of_layout = meant == "mtp" && has_flag(command, "pipeline-layout");
    throw UsageError(fmt::format(
        "unknown option {}: {} it, {} does not{}{}{}{}", both, elsewhere, command.name,
        of_train ? "; moesim train takes lists and ranges as well" : "",
        of_layout ? "; there prediction depths are m in --pipeline-layout, such as 'Et*30|t*31mL'"
                  : "",
        is_explained ? "; of training steps with layouts: moesim train --measured" : "",
        is_explained ? "" : suggestion(bare, known)));
  }
  throw UsageError(fmt::format("unknown option {}{}; 'moesim {} --help' lists the options", bare,
                               suggestion(bare, known), command.name));
}

// No guessing of shortened names, and no short options: a value such as -1 is a value, which the
// option itself then refuses with a reason.
constexpr int style = po::command_line_style::allow_long | po::command_line_style::long_allow_next |
                      po::command_line_style::long_allow_adjacent;

po::parsed_options tokenize(const Command& command, const std::vector<std::string>& arguments) {
  po::options_description described;
  for (const Flag& flag : flags_of(command)) {
    if (flag.value.empty()) {
      described.add_options()(flag.name.c_str(), "");
    } else {
      described.add_options()(flag.name.c_str(), po::value<std::string>(), "");
    }
  }
  described.add_options()("positional", po::value<std::vector<std::string>>(), "");
  po::positional_options_description positional;
  positional.add("positional", -1);
  return po::command_line_parser(arguments)
      .options(described)
      .positional(positional)
      .style(style)
      .run();
}

void take(const Command& command, const po::option& option,
          const std::vector<std::string>& arguments, CommandLine& line) {
  if (option.position_key != -1) {
    const std::string& word = option.value.at(0);
    if (word.size() > 1 && word[0] == '-') fail_unknown(command, word, arguments);
    line.positionals.push_back(word);
    return;
  }
  const std::string value = option.value.empty() ? "" : option.value[0];
  // The parser takes whatever comes next for the value, the next option too.
  if (value.starts_with("--")) {
    throw UsageError(
        fmt::format("--{}: the value is missing, {} follows; 'moesim {} --help' shows "
                    "how it is used",
                    option.string_key, value, command.name));
  }
  const bool is_output = option.string_key == "out" || option.string_key == "timeline";
  if (is_output && value == "-") {
    throw UsageError(fmt::format(
        "--{}: '-' is no name of a file: leave --{} out (results then go to stdout), or write ./- "
        "for a file of that name",
        option.string_key, option.string_key));
  }
  if (!line.values.emplace(option.string_key, value).second) {
    note(fmt::format("note: --{} is given twice: the last one counts", option.string_key));
    line.values[option.string_key] = value;
  }
}

// The width of help texts: that of the terminal, but not so wide that lines are hard to read.
unsigned help_columns() {
  constexpr unsigned least = 80;
  constexpr unsigned most = 100;
  winsize size{};
  // COLUMNS, where a user has exported it, says more than the terminal, and holds for a pipe too.
  const char* const wanted = std::getenv("COLUMNS");
  if (wanted != nullptr && std::atoi(wanted) > 0) {
    return std::clamp<unsigned>(static_cast<unsigned>(std::atoi(wanted)), least, most);
  }
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return most;
  return std::clamp<unsigned>(size.ws_col, least, most);
}

// Boost lets the lines that follow hang below what stands behind a tab.
std::string description(const Flag& flag) {
  constexpr std::size_t indent = 22;
  std::string text = flag.help;
  if (!flag.default_text.empty()) text += fmt::format(" [{}]", flag.default_text);
  for (const auto& [form, meaning] : flag.choices) {
    if (form.size() + 4 <= indent) {
      text += fmt::format("\n  {:<{}}\t{}", form, indent - 2, meaning);
    } else {
      text += fmt::format("\n  {}\n{:<{}}\t{}", form, "", indent, meaning);
    }
  }
  return text;
}

std::string described(const std::string& caption, const std::vector<Flag>& flags) {
  const unsigned columns = help_columns();
  po::options_description options(caption, columns, columns - 30);
  for (const Flag& flag : flags) {
    if (flag.value.empty()) {
      options.add_options()(flag.name.c_str(), description(flag).c_str());
      continue;
    }
    auto* value = po::value<std::string>()->value_name(flag.value);
    options.add_options()(flag.name.c_str(), value, description(flag).c_str());
  }
  std::ostringstream text;
  text << options;
  return boost::replace_all_copy(text.str(), " \n", "\n");
}

std::vector<Flag> in_section(const std::vector<Flag>& flags, const std::string& section) {
  std::vector<Flag> found;
  std::copy_if(flags.begin(), flags.end(), std::back_inserter(found),
               [&](const Flag& flag) { return flag.section == section; });
  return found;
}

// Those that have a name, in the order in which they come up.
std::vector<std::string> sections_of(const std::vector<Flag>& flags) {
  std::vector<std::string> sections;
  for (const Flag& flag : flags) {
    const bool is_known =
        std::find(sections.begin(), sections.end(), flag.section) != sections.end();
    if (!flag.section.empty() && !is_known) sections.push_back(flag.section);
  }
  return sections;
}

}  // namespace

std::vector<Flag> flags_of(const Command& command) {
  std::vector<Flag> flags;
  if (command.takes_scenario) {
    for (const scenario::Option& option : scenario::scenario_options()) {
      flags.push_back(
          {option.name, option.placeholder, option.default_text, option.help, option.values});
    }
  }
  flags.insert(flags.end(), command.flags.begin(), command.flags.end());
  flags.push_back({"help", "", "", "this text"});
  return flags;
}

std::string CommandLine::get(const std::string& flag, const std::string& fallback) const {
  const auto found = values.find(flag);
  return found == values.end() ? fallback : found->second;
}

scenario::OptionValues CommandLine::scenario() const {
  scenario::OptionValues options;
  for (const scenario::Option& option : scenario::scenario_options()) {
    const auto found = values.find(option.name);
    if (found != values.end()) options.insert(*found);
  }
  return options;
}

scenario::OptionValues CommandLine::asked_scenario() const {
  scenario::OptionValues options = scenario();
  for (const std::string& name : of_row) options.erase(name);
  return options;
}

CommandLine parse_arguments(const Command& command, const std::vector<std::string>& arguments) {
  CommandLine line;
  try {
    for (const po::option& option : tokenize(command, arguments).options) {
      take(command, option, arguments, line);
    }
  } catch (const po::unknown_option& unknown) {
    fail_unknown(command, unknown.get_option_name(), arguments);
  } catch (const po::invalid_command_line_syntax& error) {
    throw UsageError(
        fmt::format("{}; 'moesim {} --help' shows how it is used", error.what(), command.name));
  } catch (const po::error& error) {
    throw UsageError(
        fmt::format("{}; 'moesim {} --help' shows how it is used", error.what(), command.name));
  }
  if (line.positionals.size() > command.max_positionals) {
    throw UsageError(
        fmt::format("unexpected argument '{}': options start with two dashes; 'moesim "
                    "{} --help' lists them",
                    line.positionals.back(), command.name));
  }
  check_replaced_files(command, line);
  if (!command.takes_sources_apart) {
    take_config(command, line);
    check_replaced_files(command, line);  // documents of a file or row, too
  }
  for (const auto& [name, value] : line.values) {
    const std::vector<Flag> flags = flags_of(command);
    const auto flag = std::find_if(flags.begin(), flags.end(),
                                   [&, &wanted = name](const Flag& f) { return f.name == wanted; });
    if (flag != flags.end() && !flag->value.empty() && value.empty()) {
      throw UsageError(fmt::format("--{}: the value is empty: give {}", name, flag->value));
    }
  }
  return line;
}

std::string help_text(const Command& command) {
  std::string text = fmt::format("Usage: moesim {} {}\n{}\n{}\n", command.name, command.usage,
                                 command.summary, command.details);
  std::vector<Flag> flags = flags_of(command);
  const auto own = flags.end() - static_cast<std::ptrdiff_t>(command.flags.size() + 1);
  if (command.takes_scenario) {
    text += described("Scenario options [default]", {flags.begin(), own}) + "\n";
  }
  const std::vector<Flag> rest(own, flags.end());
  for (const std::string& section : sections_of(rest)) {
    text += described(section + " [default]", in_section(rest, section)) + "\n";
  }
  text += described("Options [default]", in_section(rest, ""));
  return text + "\nExample:\n  " + command.example + "\n";
}

std::string overview() {
  std::string text =
      "moesim predicts how long a step of a Mixture-of-Experts model takes on a GPU\n"
      "cluster, and how many tokens its router loses.\n\n"
      "Usage: moesim COMMAND [options]\n\nCommands:\n";
  for (const Command& command : all_commands()) {
    text += fmt::format("  {:<11}{}\n", command.name, command.summary);
  }
  return text +
         "\n'moesim COMMAND --help' lists the options of a command; 'moesim --version' the\n"
         "version. Exit codes: 0 ok, 1 failure, 2 usage, 3 missing hardware or driver,\n"
         "4 verification failed, 5 quality bar not met, 124 timeout, 130 interrupted\n"
         "(sweep, train of several steps, recommend and profile keep what is finished).\n";
}

}  // namespace moesim::tool
