#include "tools/moesim/megatron/megatron_model_option.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "sim/model/megatron/megatron_arguments.hpp"
#include "sim/model/megatron/megatron_model.hpp"
#include "sim/model/megatron/megatron_other_models.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/shell_word.hpp"
#include "tools/moesim/megatron/hugging_face_job.hpp"
#include "tools/moesim/megatron/megatron_gpus.hpp"
#include "tools/moesim/megatron/megatron_typed.hpp"

namespace moesim::tool {
namespace {

using model::MegatronArguments;

void note_model(const MegatronArguments& given) {
  for (const std::string& text :
       {model::vocabulary_note(given), model::clamp_note(given), model::spec_note(given)}) {
    if (!text.empty()) note(text);
  }
}

std::vector<std::string> layout_arguments(const MegatronArguments& given, const CommandLine& line) {
  std::vector<std::string> found;
  each_option_argument([&](const std::string& option, const char* argument) {
    if (option == "sequence-length") return;  // the model's
    const std::string text = fmt::format("--{}", argument);
    const bool is_new = std::find(found.begin(), found.end(), text) == found.end();
    if (is_new && !line.has(option) && given.has(argument)) found.push_back(text);
  });
  return found;
}

bool tells_layout(const MegatronArguments& given) {
  bool found = false;
  each_option_argument(
      [&](const std::string&, const char* argument) { found = found || given.has(argument); });
  return found;
}

// What takes the rest of a script too.
std::string what_takes_more(const Command& command, const CommandLine& line,
                            const std::string& name) {
  const std::string flag = fmt::format("--megatron {}", shell_word(name));
  const bool has_flag = std::any_of(command.flags.begin(), command.flags.end(),
                                    [](const Flag& each) { return each.name == "megatron"; });
  if (has_flag) return flag + " takes these too";
  if (command.name != "explain") return fmt::format("moesim train {} takes these too", flag);
  const bool has_time = line.has("measured");
  return fmt::format("a training step of this script: moesim train {} --measured {}", flag,
                     has_time ? shell_word(line.get("measured")) : "TIME");
}

}  // namespace

void check_is_of_training(const MegatronArguments& given, const CommandLine& line) {
  const bool has_layout = tells_layout(given);
  // First, so that no argument of the model is asked for before take_model() counts them.
  if (has_layout && line.has("model")) return;
  if (model::tells_model(given)) return;
  if (const auto job = hugging_face_job(given, line)) {
    const std::string remarks = fmt::format("{}", fmt::join(job->remarks, "; "));
    throw UsageError(fmt::format(
        "{}: a job of Hugging Face's Trainer or Accelerate, not of Megatron-LM: its options alone "
        "make a step{}, of what is read here: {}",
        given.name(), remarks.empty() ? "" : fmt::format(" ({})", remarks), job->command));
  }
  if (has_layout) return;
  const std::vector<std::string> rest = given.not_asked();
  constexpr std::size_t shown = 8;
  std::vector<std::string> names;
  for (const std::string& name : rest) {
    if (names.size() < shown) names.push_back(name.front() == '-' ? name : "--" + name);
  }
  throw UsageError(fmt::format(
      "{}: neither a size of the model nor a layout in it, by Megatron-LM's arguments or "
      "Megatron-Bridge's keys: only {}{}",
      given.name(), fmt::join(names, " "), rest.size() > names.size() ? " ..." : ""));
}

std::shared_ptr<const model::Model> typed_model(const CommandLine& line) {
  const std::string name = line.get("model");
  if (name.empty() || name.find(',') != std::string::npos) return nullptr;
  return std::make_shared<const model::Model>(model::Model::load(name));
}

std::size_t take_model(MegatronInput& input) {
  const std::size_t before = input.given.not_asked().size();
  if (input.typed("model")) {
    model::mark_model_arguments(input.given);
    return before - input.given.not_asked().size();
  }
  if (!MegatronArguments::is_path(input.given.name())) {
    throw UsageError(fmt::format(
        "--megatron {}: the name of a script ends in .sh, .bash, .slurm or .sbatch, of a YAML in "
        ".yaml or .yml: copy it, or give --model too",
        input.given.name()));
  }
  model::megatron_model(input.given);
  note_model(input.given);
  input.options["model"] = input.given.source();
  return 0;
}

void note_model_alone(const Command& command, const CommandLine& line) {
  if (line.has("megatron")) return;
  const std::string models = line.get("model");
  for (const std::string_view part : split(models, ',')) {
    const std::string name(part);
    if (!MegatronArguments::is_path(name)) continue;
    std::vector<std::string> left;
    try {
      const MegatronArguments given = MegatronArguments::load(name);
      note_model(given);
      left = layout_arguments(given, line);
      if (!line.has("gpus") && tells_gpus(given)) left.insert(left.begin(), "its GPUs");
    } catch (const Error&) {  // of the model, said where it is resolved
      continue;
    }
    if (left.empty()) continue;
    constexpr std::size_t shown = 4;
    const std::string more =
        left.size() > shown ? fmt::format(" and {} more", left.size() - shown) : "";
    left.resize(std::min(left.size(), shown));
    note(fmt::format("note: --model {}: the model alone is taken from it, not {}{}: {}", name,
                     fmt::join(left, ", "), more, what_takes_more(command, line, name)));
  }
}

}  // namespace moesim::tool
