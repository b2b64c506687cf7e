#include "sim/model/megatron/megatron_arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/text.hpp"
#include "sim/model/megatron/megatron_commands.hpp"
#include "sim/model/megatron/megatron_counterparts.hpp"
#include "sim/model/megatron/megatron_keys.hpp"
#include "sim/model/megatron/megatron_words.hpp"
#include "sim/model/megatron/megatron_yaml.hpp"
#include "sim/model/megatron/script_call.hpp"
#include "sim/shell/words.hpp"

namespace moesim::model {
namespace {

constexpr std::int64_t most_layers = 65535;  // model.schema

// The place of the script or module among a command's words; the number of them without one.
std::size_t script_in(const std::vector<shell::Word>& words) {
  std::size_t module = words.size();
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string ending = ending_of(words[at].text);
    if (at > 0 && words[at - 1].text == "-m") module = std::min(module, at);
    if ((ending == "py" || ending == "sh") && words[at].text.front() != '-') return at;
  }
  return module;
}

// "$NAME" or "${NAME}"
bool is_variable(const std::string& value) {
  return value.front() == '$' && value.find_first_not_of(
                                     "{}_0123456789"
                                     "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
                                     1) == std::string::npos;
}

// The first value that has something that is not known; "": all are known.
std::string unknown_value(const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    if (value.find('$') != std::string::npos) return value;
  }
  return "";
}

std::string refusal_of(const std::string& value) {
  return fmt::format(
      "'{}': {}: put its value there", value,
      is_variable(value) ? "the script does not set it" : "what it is in the script is not known");
}

std::string how_to_give(const std::vector<std::string>& variables, const std::string& path) {
  if (variables.empty()) return "";
  return fmt::format(", or in the call: '{}'", call_with(variables, path));
}

}  // namespace

bool MegatronArguments::is_path(const std::string& call) {
  return is_launch_file(script_call(call).path);
}

std::string MegatronArguments::file_of(const std::string& call) { return script_call(call).path; }

MegatronArguments MegatronArguments::load(const std::string& call) {
  const ScriptCall parts = script_call(call);
  return parse_call(read_file(parts.path), parts, call, shell::file_of_script);
}

MegatronArguments MegatronArguments::load_with(const std::string& call, const std::string& variable,
                                               const std::string& value) {
  ScriptCall parts = script_call(call);
  parts.assignments.push_back({variable, value});
  return parse_call(read_file(parts.path), parts, call, shell::file_of_script);
}

MegatronArguments MegatronArguments::parse(const std::string& text, const std::string& name,
                                           shell::Files::Read read) {
  ScriptCall call;
  call.path = name;
  return parse_call(text, call, name, std::move(read));
}

MegatronArguments MegatronArguments::parse_call(const std::string& text, const ScriptCall& call,
                                                const std::string& source,
                                                shell::Files::Read read) {
  MegatronArguments made;
  made.name_ = call.path;
  made.source_ = source;
  made.files_ = shell::Files(call.path, std::move(read));
  const bool is_yaml = is_yaml_file(call.path);
  is_yaml ? made.read_yaml(text, call) : made.read_script(script_as_called(text, call));
  made.take_counterparts();
  if (made.arguments_.empty()) {
    throw UsageError(
        fmt::format("{}: no argument of Megatron-LM in it, such as {}", call.path,
                    is_yaml ? "num_layers: 32"
                            : "--num-layers 32; arguments in a script that it runs are not "
                              "read: give that script"));
  }
  return made;
}

void MegatronArguments::read_script(const std::string& text) {
  const std::vector<shell::Command> commands = shell::commands_in(text, files_);
  TrainingCommands training = training_commands(commands, files_);
  std::vector<shell::Word> unknown;
  for (std::size_t each = 0; each < commands.size(); ++each) {
    if (training.taken[each]) take(without_unknown(commands[each], unknown));
  }
  left_out_ = std::move(training.left_out);
  notes_ = files_.notes();
  notes_.insert(notes_.end(), training.notes.begin(), training.notes.end());
  take_overrides();
  if (!training.takes_lists) note_unknown(unknown);
  if (training.takes_lists) {
    notes_.push_back(
        "the command that trains is not in it, or uses variables that it does not set: arguments "
        "are taken from all variables");
  }
}

int MegatronArguments::rank_of(const std::string& section) {
  if (section == "mixed-precision") return rank_of_precision;
  return section == "model" ? 1 : 0;
}

void MegatronArguments::put(const KeyValue& value, const Place& place) {
  Argument& known = arguments_[value.argument];
  const bool is_new = known.line == 0;
  if (!is_new && place.rank < known.rank) return;
  if (!value.is_set && place.rank < rank_of_precision && !place.is_override) {
    if (is_new) arguments_.erase(value.argument);
    return;
  }
  std::string other;
  const bool is_beside = place.rank == known.rank && !known.values.empty() && !value.values.empty();
  if (is_beside && !place.is_override && known.values != value.values) {
    other = fmt::format("{} ({})", fmt::join(known.values, " "), files_.place(known.line));
  }
  const bool was_asked = known.asked || value.is_understood;
  known = {value.values, place.line, place.rank, value.is_set, std::move(other), was_asked};
}

void MegatronArguments::put_key(const std::string& key, const std::string& value,
                                const std::vector<std::string>& items, const Place& place) {
  if (key == "mixed-precision") {
    const std::vector<KeyValue> recipe = precision_recipe(unquoted(value));
    for (const KeyValue& each : recipe) {
      put(each, {place.line, rank_of_precision, place.is_override});
    }
    if (!recipe.empty()) return;
  }
  for (const KeyValue& each : key_values(key, value, items)) put(each, place);
}

void MegatronArguments::note_unknown(const std::vector<shell::Word>& words) {
  for (const shell::Word& word : words) {
    notes_.push_back(fmt::format("{} ({}) is not known: arguments in it are not read",
                                 shortened(word.text), files_.place(word.line)));
  }
}

void MegatronArguments::take(const shell::Command& command) {
  const std::vector<shell::Word>& words = command.words;
  const std::size_t script = script_in(words);
  const bool is_performance = script < words.size() && is_performance_script(words[script].text);
  struct Given {
    std::string name;
    std::vector<std::string> values;
    int line;
  };
  std::vector<Given> given;
  bool has_name = false;  // values are of the last one
  bool is_behind = script == words.size() && command.kind == shell::Command::Kind::list;
  for (std::size_t at = 0; at < words.size(); ++at) {
    const auto& [word, line] = words[at];
    if (is_argument(word)) {
      const auto equals = word.find('=');
      given.push_back({argument_name(word.substr(0, equals)), {}, line});
      if (equals != std::string::npos) given.back().values.push_back(word.substr(equals + 1));
      has_name = true;
    } else if (const auto override = override_in(word); override && is_behind) {
      overrides_.push_back({*override, line});
      has_name = false;
    } else if (is_short_option(word)) {
      has_name = is_behind;
      const auto equals = word.find('=');
      if (is_behind) given.push_back({word.substr(0, equals), {}, line});
      if (is_behind && equals != std::string::npos) {
        given.back().values.push_back(word.substr(equals + 1));
      }
    } else if (has_name) {
      given.back().values.push_back(word);
    }
    is_behind = is_behind || at == script;
  }
  for (const Given& each : given) {
    if (is_performance) {
      put_performance_option(each.name, each.values, each.line);
    } else {
      put({each.name, each.values}, {each.line, 0, true});
    }
  }
  if (is_performance) put_besides_performance_options();
  names_recipe_ = names_recipe_ || is_performance;
}

void MegatronArguments::take_overrides() {
  for (const auto& [each, line] : overrides_) {
    YamlKey key;
    key.name = each.name;
    key.section = key.parent = argument_name(each.section);
    key.value = each.value;
    const Place place{line, rank_of(key.section), true};
    const std::vector<KeyValue> of_nemo = nemo_values(key);
    for (const KeyValue& value : of_nemo) put(value, place);
    if (of_nemo.empty()) put_key(key.name, key.value, {}, place);
  }
  names_recipe_ = names_recipe_ || (!overrides_.empty() && has("recipe"));
  if (!names_recipe_) return;
  for (const char* argument :
       {"bf16", "use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather",
        "sequence-parallel", "moe-grouped-gemm", "moe-permute-fusion"}) {
    put_usual(argument, {});
  }
  put_usual("expert-tensor-parallel-size", {"1"});
  notes_.push_back(
      "the recipe of Megatron-Bridge that it names is not read: what the file does not set is "
      "moesim's default, with the distributed optimizer, the overlaps and the one slice of experts "
      "that recipes have");
}

void MegatronArguments::take_counterparts() {
  is_deepspeed_ = std::any_of(arguments_.begin(), arguments_.end(), [](const auto& each) {
    return each.second.is_set && is_of_deepspeed(each.first);
  });
  std::vector<std::string> names;
  for (const auto& [name, argument] : arguments_) {
    if (counterpart(name) != name) names.push_back(name);
  }
  for (const std::string& name : names) {
    auto moved = arguments_.extract(name);
    moved.key() = counterpart(name);
    arguments_.insert(std::move(moved));  // if its counterpart is not there itself
  }
  // Before there was a granularity a method meant full recomputation.
  const bool is_old =
      std::find(names.begin(), names.end(), "activations-checkpoint-method") != names.end();
  if (has("checkpoint-activations") || is_old) {
    put_usual("recompute-granularity", {"full"});
  }
  if (has("checkpoint-activations") && has("recompute-num-layers")) {
    put_usual("recompute-method", {"uniform"});
  }
  if (is_deepspeed_) take_deepspeed();
  // Below 0 there is none (megatron/core/transformer/transformer_config.py).
  const auto capacity = known_text("moe-expert-capacity-factor");
  if (capacity && parse_number<double>(*capacity).value_or(0) < 0) {
    arguments_.erase("moe-expert-capacity-factor");
  }
  // What is not known is refused where it is asked for.
  const auto as_given = [&](const char* name) {
    const auto found = arguments_.find(name);
    const bool is_given = found != arguments_.end() && !found->second.values.empty();
    return is_given ? found->second.values.front() : std::string();
  };
  // The older name of groups that are the experts of a rank each.
  if (has("moe-router-topk-limited-devices")) {
    put_usual("moe-router-group-topk", {as_given("moe-router-topk-limited-devices")});
    const std::string ranks = as_given("expert-model-parallel-size");
    put_usual("moe-router-num-groups", {ranks.empty() ? "1" : ranks});
  }
  if (!has("expert-interval")) return;
  for (const char* name : {"expert-interval", "num-layers"}) {
    const std::string value = as_given(name);
    if (value.find('$') != std::string::npos) return put_usual("moe-layer-freq", {value});
  }
  const auto interval = size("expert-interval");
  const auto layers = interval ? size("num-layers") : std::nullopt;
  if (!layers || *layers > most_layers || !has("num-experts")) return;
  put_usual("moe-layer-freq", {every_nth_layer(*layers, *interval)});
}

// Defaults of Megatron-DeepSpeed where they are not Megatron-LM's.
void MegatronArguments::take_deepspeed() {
  notes_.push_back(
      "arguments of Megatron-DeepSpeed are taken with its defaults; the step is priced as "
      "Megatron-Core's");
  const Argument* const given = find("num-experts");
  const std::vector<std::string> experts =
      given == nullptr ? std::vector<std::string>() : given->values;
  if (experts.empty() || experts.front() == "1") {
    arguments_.erase("num-experts");
    return;
  }
  if (experts.size() > 1) {
    fail("num-experts", "layers with different numbers of experts are not known");
  }
  put_usual("moe-router-topk", {"1"});
  put_usual("expert-interval", {"2"});
  if (has("disable-moe-token-dropping")) {
    arguments_.erase("moe-expert-capacity-factor");
  } else {
    put_usual("moe-expert-capacity-factor", {"1"});
  }
  if (!has("enable-expert-tensor-parallelism")) put_usual("expert-tensor-parallel-size", {"1"});
}

void MegatronArguments::put_usual(const char* argument, std::vector<std::string> values) {
  if (arguments_.contains(argument)) return;  // also where it is said that it is not set
  arguments_[argument] = {std::move(values), 1, 0, true, "", true};
}

void MegatronArguments::read_yaml(const std::string& text, const ScriptCall& call) {
  if (!call.words.empty()) {
    throw UsageError(fmt::format("{}: a YAML takes no arguments: '{}'", name_, call.words.front()));
  }
  YamlKeys found = yaml_keys(text);
  put_in_references(found.keys, call);
  for (const YamlKey& each : found.keys) {
    if (each.is_section && each.value.empty()) continue;
    const Place place{each.line, rank_of(each.section), false};
    if (each.is_argument) {
      // Its own name, whatever a key of that name stands for.
      for (const KeyValue& value : key_values("--" + each.name, each.value, each.items)) {
        put({each.name, value.values, value.is_set}, place);
      }
    } else if (const auto values = nemo_values(each); !values.empty()) {
      for (const KeyValue& value : values) put(value, place);
    } else {
      const bool is_null = each.value.empty() && each.items.empty();
      put_key(each.name, is_null ? "null" : each.value, each.items, place);
    }
  }
  left_out_ = std::move(found.left_out);
}

const MegatronArguments::Argument* MegatronArguments::find(std::string_view argument) const {
  const auto found = arguments_.find(argument);
  if (found == arguments_.end()) return nullptr;
  found->second.asked = true;
  if (!found->second.is_set) return nullptr;
  return &found->second;
}

bool MegatronArguments::has(std::string_view argument) const { return find(argument) != nullptr; }

void MegatronArguments::fail(std::string_view argument, const std::string& why) const {
  const Argument* found = find(argument);
  const std::string place = found == nullptr ? name_ : files_.address(found->line);
  throw UsageError(fmt::format("{}: --{}: {}", place, argument, why));
}

void MegatronArguments::spare(std::string_view argument) {
  const auto found = arguments_.find(argument);
  if (found != arguments_.end()) found->second.is_spared = true;
}

bool MegatronArguments::has_unknown() const {
  return std::any_of(arguments_.begin(), arguments_.end(),
                     [](const auto& each) { return !unknown_value(each.second.values).empty(); });
}

bool MegatronArguments::is_left(std::string_view argument, const Argument& found) const {
  const std::string value = unknown_value(found.values);
  if (value.empty()) return false;
  if (found.is_spared) return true;
  found.is_missed = true;
  if (!collects_) fail(argument, refusal_of(value) + how_to_give(variables_in(value), name_));
  return true;
}

std::string MegatronArguments::refusal_of_unknown() const {
  std::vector<std::string> values;
  std::vector<std::string> variables;
  std::string one;
  for (const auto& [name, argument] : arguments_) {
    if (!argument.is_missed) continue;
    const std::string value = unknown_value(argument.values);
    one = fmt::format("{}: --{}: {}", files_.address(argument.line), name, refusal_of(value));
    values.push_back(fmt::format("--{} '{}' ({})", name, value, files_.place(argument.line)));
    for (std::string& each : variables_in(value)) variables.push_back(std::move(each));
  }
  if (values.empty()) return "";
  if (values.size() == 1) return one + how_to_give(variables, name_);
  return fmt::format("{}: it does not set {}: put these values there{}", name_,
                     fmt::join(values, ", "), how_to_give(variables, name_));
}

std::vector<std::string> MegatronArguments::texts(std::string_view argument) const {
  const Argument* found = find(argument);
  if (found == nullptr || is_left(argument, *found)) return {};
  return found->values;
}

std::optional<std::string> MegatronArguments::text(std::string_view argument) const {
  const Argument* found = find(argument);
  if (found == nullptr || is_left(argument, *found)) return std::nullopt;
  if (found->values.empty()) fail(argument, "has no value");
  return found->values.front();
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

std::vector<std::string> MegatronArguments::notes() const {
  std::vector<std::string> all = notes_;
  for (const auto& [name, argument] : arguments_) {
    if (!argument.asked || argument.other.empty()) continue;
    all.push_back(fmt::format("--{} is given twice, as {} and as {} ({}): the last is taken", name,
                              argument.other, fmt::join(argument.values, " "),
                              files_.place(argument.line)));
  }
  return all;
}

std::vector<std::string> MegatronArguments::taken_otherwise(const MegatronArguments& other) const {
  std::vector<std::string> names;
  for (const auto& [name, argument] : arguments_) {
    if (!argument.asked) continue;
    const auto found = other.arguments_.find(name);
    const bool is_same = found != other.arguments_.end() &&
                         found->second.is_set == argument.is_set &&
                         found->second.values == argument.values;
    if (!is_same) names.push_back(name);
  }
  for (const auto& each : other.arguments_) {
    if (!arguments_.contains(each.first)) names.push_back(each.first);
  }
  return names;
}

std::vector<std::string> MegatronArguments::not_asked() const {
  std::vector<std::string> names;
  for (const auto& [name, argument] : arguments_) {
    if (!argument.asked && argument.is_set) names.push_back(name);
  }
  return names;
}

}  // namespace moesim::model
