#include "sim/model/megatron/megatron_arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <sstream>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/text.hpp"
#include "sim/model/megatron/megatron_commands.hpp"
#include "sim/model/shell/shell_words.hpp"

namespace moesim::model {
namespace {

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::string unquoted(const std::string& text) {
  const bool quoted = text.size() > 1 && (text.front() == '"' || text.front() == '\'') &&
                      text.back() == text.front();
  return quoted ? text.substr(1, text.size() - 2) : text;
}

// The values of "[a, b]", or the text itself.
std::vector<std::string> yaml_values(const std::string& text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return {unquoted(text)};
  std::vector<std::string> values;
  std::istringstream items(text.substr(1, text.size() - 2));
  for (std::string item; std::getline(items, item, ',');) values.push_back(unquoted(trimmed(item)));
  return values;
}

// Without a comment behind it.
std::string yaml_line(const std::string& line) {
  char quote = 0;
  for (std::size_t at = 0; at < line.size(); ++at) {
    const char letter = line[at];
    if (quote != 0) {
      if (letter == quote) quote = 0;
    } else if (letter == '"' || letter == '\'') {
      quote = letter;
    } else if (letter == '#' && (at == 0 || std::isspace(line[at - 1]) != 0)) {
      return line.substr(0, at);
    }
  }
  return line;
}

// Keys of a TransformerConfig (Megatron-Core, Megatron-Bridge, NeMo), which files have without
// dashes, by the argument that sets them; `off`: the argument says that the key is false.
struct ConfigKey {
  const char* key;
  const char* argument;
  bool off = false;
};
constexpr ConfigKey config_keys[] = {
    {"num-moe-experts", "num-experts"},
    {"gated-linear-unit", "swiglu"},
    {"fp8", "fp8-format"},
    {"fp4", "fp4-format"},
    {"virtual-pipeline-model-parallel-size", "num-virtual-stages-per-pipeline-rank"},
    {"num-query-groups", "group-query-attention"},
    {"num-layers-in-first-pipeline-stage", "decoder-first-pipeline-num-layers"},
    {"num-layers-in-last-pipeline-stage", "decoder-last-pipeline-num-layers"},
    {"grad-reduce-in-fp32", "grad-reduce-in-bf16", true},
    {"add-bias-linear", "disable-bias-linear", true},
    {"share-embeddings-and-output-weights", "untie-embeddings-and-output-weights", true},
};

std::string ending_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(dot + 1);
}

bool is_yaml(const std::string& path) {
  const std::string ending = ending_of(path);
  return ending == "yaml" || ending == "yml";
}

// Words of YAML 1.1 as PyYAML resolves them (yaml/resolver.py), without quotes: in small letters,
// in capitals, or with the first one alone.
bool is_word(const std::string& value, std::initializer_list<std::string_view> words) {
  std::string small = value;
  std::transform(small.begin(), small.end(), small.begin(),
                 [](unsigned char letter) { return std::tolower(letter); });
  if (std::find(words.begin(), words.end(), small) == words.end()) return false;
  const auto is_small = [](unsigned char letter) { return std::islower(letter) != 0; };
  return std::all_of(value.begin() + 1, value.end(), is_small) ||
         std::none_of(value.begin(), value.end(), is_small);
}

bool says_yes(const std::string& value) { return is_word(value, {"true", "yes", "on"}); }

// "None" is what Python writes where it means null.
bool says_no(const std::string& value) {
  return is_word(value, {"false", "no", "off", "null"}) || value == "~" || value == "None";
}

}  // namespace

bool MegatronArguments::is_path(const std::string& path) {
  const std::string ending = ending_of(path);
  return is_yaml(path) || ending == "sh" || ending == "bash" || ending == "slurm" ||
         ending == "sbatch";
}

MegatronArguments MegatronArguments::load(const std::string& path) {
  return parse(read_file(path), path);
}

MegatronArguments MegatronArguments::parse(const std::string& text, const std::string& name) {
  MegatronArguments made;
  made.name_ = name;
  is_yaml(name) ? made.read_yaml(text) : made.read_script(text);
  if (made.arguments_.empty()) {
    throw UsageError(fmt::format("{}: no argument of Megatron-LM in it, such as {}", name,
                                 is_yaml(name)
                                     ? "num_layers: 32"
                                     : "--num-layers 32; arguments in a file that it sources are "
                                       "not read: give that file"));
  }
  return made;
}

void MegatronArguments::read_script(const std::string& text) {
  const std::vector<ShellCommand> commands = shell_commands(text, name_);
  TrainingCommands training = training_commands(commands);
  for (std::size_t each = 0; each < commands.size(); ++each) {
    if (training.taken[each]) take(commands[each]);
  }
  left_out_ = std::move(training.left_out);
  if (training.takes_lists) {
    notes_.push_back(
        "the command that trains is not in it, or uses variables that it does not set: arguments "
        "are taken from all variables");
  }
}

void MegatronArguments::take(const ShellCommand& command) {
  Argument* current = nullptr;
  for (const ShellWord& word : command.words) {
    if (is_argument(word.text)) {
      const auto equals = word.text.find('=');
      current = &arguments_[argument_name(word.text.substr(0, equals))];
      *current = {{}, word.line};
      if (equals != std::string::npos) current->values.push_back(word.text.substr(equals + 1));
    } else if (current != nullptr) {
      current->values.push_back(word.text);
    }
  }
}

void MegatronArguments::read_yaml(const std::string& text) {
  std::istringstream lines(text);
  Argument* current = nullptr;
  int number = 0;
  for (std::string raw; std::getline(lines, raw);) {
    ++number;
    const std::string line = trimmed(yaml_line(raw));
    if (line.empty() || line == "---") continue;
    if (line.rfind("- ", 0) == 0) {
      if (current != nullptr) current->values.push_back(unquoted(trimmed(line.substr(2))));
      continue;
    }
    const auto colon = line.find(':');
    current = nullptr;
    if (colon == std::string::npos) continue;
    const std::string name = argument_name(unquoted(line.substr(0, colon)));
    const std::string value = trimmed(line.substr(colon + 1));
    const bool has_small = std::any_of(
        name.begin(), name.end(), [](unsigned char letter) { return std::islower(letter) != 0; });
    if (!has_small) continue;
    const bool is_key = line.rfind("--", 0) != 0;
    const auto* const known =
        std::find_if(std::begin(config_keys), std::end(config_keys),
                     [&](const ConfigKey& each) { return is_key && name == each.key; });
    if (known != std::end(config_keys) && says_no(value) == known->off) {
      arguments_[known->argument] = {known->off ? std::vector<std::string>{} : yaml_values(value),
                                     number};
    }
    if (says_no(value)) continue;
    current = &arguments_[name];
    *current = {{}, number, current->asked};
    if (!value.empty() && !says_yes(value)) current->values = yaml_values(value);
    if (known != std::end(config_keys)) current->asked = true;
  }
}

const MegatronArguments::Argument* MegatronArguments::find(std::string_view argument) const {
  const auto found = arguments_.find(argument);
  if (found == arguments_.end()) return nullptr;
  found->second.asked = true;
  return &found->second;
}

bool MegatronArguments::has(std::string_view argument) const { return find(argument) != nullptr; }

void MegatronArguments::fail(std::string_view argument, const std::string& why) const {
  const Argument* found = find(argument);
  const std::string place = found == nullptr ? name_ : fmt::format("{}:{}", name_, found->line);
  throw UsageError(fmt::format("{}: --{}: {}", place, argument, why));
}

std::vector<std::string> MegatronArguments::texts(std::string_view argument) const {
  const Argument* found = find(argument);
  if (found == nullptr) return {};
  for (const std::string& value : found->values) {
    if (value.find('$') == std::string::npos) continue;
    fail(argument, fmt::format("'{}': the script does not set it: put its value there", value));
  }
  return found->values;
}

std::optional<std::string> MegatronArguments::text(std::string_view argument) const {
  if (find(argument) == nullptr) return std::nullopt;
  const std::vector<std::string> values = texts(argument);
  if (values.empty()) fail(argument, "has no value");
  return values.front();
}

std::optional<std::string> MegatronArguments::known_text(std::string_view argument) const {
  const Argument* found = find(argument);
  if (found == nullptr || found->values.empty()) return std::nullopt;
  const std::string& value = found->values.front();
  return value.find('$') == std::string::npos ? std::optional(value) : std::nullopt;
}

std::optional<std::int64_t> MegatronArguments::whole(std::string_view argument,
                                                     std::int64_t least) const {
  const std::optional<std::string> value = text(argument);
  if (!value) return std::nullopt;
  const std::optional<std::int64_t> number = parse_number<std::int64_t>(*value);
  if (!number || *number < least) {
    fail(argument, fmt::format("'{}' is not a whole number from {} on", *value, least));
  }
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();  // products stay whole
  if (*number > most) fail(argument, fmt::format("{} is too large: at most {}", *value, most));
  return number;
}

std::optional<std::int64_t> MegatronArguments::size(std::string_view argument) const {
  return whole(argument, 1);
}

std::optional<std::int64_t> MegatronArguments::count(std::string_view argument) const {
  return whole(argument, 0);
}

std::vector<std::string> MegatronArguments::not_asked() const {
  std::vector<std::string> names;
  for (const auto& [name, argument] : arguments_) {
    if (!argument.asked) names.push_back(name);
  }
  return names;
}

}  // namespace moesim::model
