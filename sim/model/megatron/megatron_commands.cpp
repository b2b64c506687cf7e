#include "sim/model/megatron/megatron_commands.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "sim/model/megatron/megatron_bridge.hpp"

namespace moesim::model {
namespace {

using Kind = ShellCommand::Kind;

// Arguments by which a command is known as one that trains, those that end in a dash are
// beginnings.
constexpr std::string_view of_training[] = {"bf16",
                                            "context-parallel-size",
                                            "data-path",
                                            "expert-",
                                            "ffn-hidden-size",
                                            "fp16",
                                            "fp4-",
                                            "fp8-",
                                            "global-batch-size",
                                            "hidden-size",
                                            "lr",
                                            "micro-batch-size",
                                            "moe-",
                                            "num-attention-heads",
                                            "num-experts",
                                            "num-layers",
                                            "pipeline-model-parallel-",
                                            "recompute-",
                                            "seq-length",
                                            "sequence-parallel",
                                            "swiglu",
                                            "tensor-model-parallel-size",
                                            "train-iters",
                                            "train-samples",
                                            "use-distributed-optimizer",
                                            "vocab-size"};

// Of "--seq-length=4096" and "model.seq_length=4096"; "": of another word.
std::string name_in(const std::string& word) {
  if (is_argument(word)) return argument_name(word.substr(0, word.find('=')));
  const std::optional<Override> override = override_in(word);
  return override ? override->name : performance_argument(word).value_or("");
}

// Arguments that have no value, and those that may have several.
constexpr std::string_view without_value[] = {"accumulate-allreduce-grads-in-fp32",
                                              "bf16",
                                              "calculate-per-token-loss",
                                              "disable-bias-linear",
                                              "group-query-attention",
                                              "moe-grouped-gemm",
                                              "moe-permute-fusion",
                                              "moe-router-pre-softmax",
                                              "no-load-optim",
                                              "no-load-rng",
                                              "overlap-grad-reduce",
                                              "overlap-param-gather",
                                              "qk-layernorm",
                                              "recompute-activations",
                                              "sequence-parallel",
                                              "swiglu",
                                              "untie-embeddings-and-output-weights",
                                              "use-distributed-optimizer",
                                              "use-flash-attn",
                                              "use-mcore-models"};
constexpr std::string_view with_values[] = {"cuda-graph-modules", "cuda-graph-scope",
                                            "data-path",          "moe-aux-loss-coeff",
                                            "offload-modules",    "moe-router-load-balancing-type",
                                            "recompute-modules",  "test-data-path",
                                            "train-data-path",    "valid-data-path"};

template <std::size_t Count>
bool holds(const std::string_view (&names)[Count], const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::size_t arguments_of(const ShellCommand& command) {
  return static_cast<std::size_t>(
      std::count_if(command.words.begin(), command.words.end(), [](const ShellWord& word) {
        const std::string name = name_in(word.text);
        return std::any_of(std::begin(of_training), std::end(of_training), [&](auto known) {
          return known.back() == '-' ? name.rfind(known, 0) == 0 : name == known;
        });
      }));
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool is_named_for_training(const std::string& script) {
  std::string name = script.substr(script.rfind('/') + 1);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return std::tolower(letter); });
  return name.find("train") != std::string::npos;
}

// The place of a command's script, of several that which is named for training; the number of its
// words without one.
std::size_t script_at(const ShellCommand& command) {
  const std::vector<ShellWord>& words = command.words;
  std::size_t first = words.size();
  bool runs_modules = false;  // "-m NAME" of python and torchrun
  for (std::size_t at = command.program(); at < words.size(); ++at) {
    const std::string& word = words[at].text;
    if (word.empty() || word.front() == '-') continue;
    bool is_script = runs_modules && words[at - 1].text == "-m";
    for (const char* end : {".py", ".sh", ".bash", ".slurm", ".sbatch"}) {
      is_script = is_script || ends_with(word, end);
    }
    if (is_script && is_named_for_training(word)) return at;
    if (is_script) first = std::min(first, at);
    runs_modules =
        runs_modules || word.find("python") != std::string::npos || ends_with(word, "torchrun");
  }
  return first;
}

std::string program_of(const ShellCommand& command) {
  const std::size_t at = command.program();
  return at < command.words.size() ? command.words[at].text : "";
}

std::string script_of(const ShellCommand& command) {
  const std::size_t at = script_at(command);
  return at < command.words.size() ? command.words[at].text : program_of(command);
}

bool is_named_for_training(const ShellCommand& command) {
  const std::size_t at = script_at(command);
  return at < command.words.size() && is_named_for_training(command.words[at].text);
}

bool trains(const ShellCommand& command) {
  return is_named_for_training(command) && !ends_with(script_of(command), "sh");
}

// It shows a command.
bool is_output(const ShellCommand& command) {
  const std::string program = program_of(command);
  return program == "echo" || program == "printf";
}

bool says_gpus(const ShellCommand& command) {
  constexpr std::array names = {
      "nproc-per-node", "nnodes",        "nodes", "ntasks",   "gpus-per-node", "ntasks-per-node",
      "gres",           "gpus-per-task", "np",    "num-gpus", "num-nodes",     "num-processes"};
  return std::any_of(command.words.begin(), command.words.end(), [&](const ShellWord& word) {
    if (!is_argument(word.text)) return false;
    const std::string name = argument_name(word.text.substr(0, word.text.find('=')));
    return std::find(names.begin(), names.end(), name) != names.end();
  });
}

// "$NAME", "${NAME}"
bool is_variable(const std::string& word) {
  const bool is_braced = word.rfind("${", 0) == 0 && word.back() == '}';
  const std::string name = is_braced ? word.substr(2, word.size() - 3)
                                     : word.substr(std::min<std::size_t>(1, word.size()));
  return !name.empty() && std::all_of(name.begin(), name.end(), is_name);
}

// A variable that is not known stands where it may be a list of arguments.
bool hides_arguments(const ShellCommand& command) {
  const std::vector<ShellWord>& words = command.words;
  const std::size_t script = script_at(command);
  for (std::size_t at = script < words.size() ? script + 1 : 1; at < words.size(); ++at) {
    const bool is_value =
        is_argument(words[at - 1].text) && words[at - 1].text.find('=') == std::string::npos;
    if (words[at].text.rfind('$', 0) == 0 && !is_value) return true;
  }
  return false;
}

std::string shortened(const std::string& text) {
  constexpr std::size_t longest = 60;
  if (text.empty()) return "empty";
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

// "TP is 2 (line 3) or 4 (line 5), as `[ $1 = large ]` (line 4) is not known: 4 is taken"
std::string told(const ShellDoubt& doubt) {
  std::vector<std::string> values;
  for (const auto& each : doubt.values) {
    values.push_back(fmt::format("{} (line {})", shortened(each.text), each.line));
  }
  const bool has_several = values.size() > 1;
  if (!has_several) values.emplace_back(doubt.adds ? "not" : "not set");
  const std::string why =
      fmt::format("as `{}` (line {}) is not known", shortened(doubt.condition), doubt.line);
  if (doubt.adds) {
    return fmt::format("{} has {}, {}: {} taken", doubt.name,
                       fmt::join(values, has_several ? " and " : " or "), why,
                       has_several ? "all are" : "it is");
  }
  return fmt::format("{} is {}, {}: {} is taken", doubt.name, fmt::join(values, " or "), why,
                     shortened(doubt.taken));
}

class Choice {
 public:
  explicit Choice(const std::vector<ShellCommand>& commands) : commands_(commands) {
    made_.taken.assign(commands.size(), false);
    for (const ShellCommand& each : commands) arguments_.push_back(arguments_of(each));
  }

  TrainingCommands made() {
    choose();
    keep_last();
    find_unused();
    std::size_t found = 0;
    bool hides = false;
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      if (!made_.taken[each]) continue;
      found += arguments_[each];
      hides = hides || hides_arguments(commands_[each]);
      is_program_ = is_program_ || trains(commands_[each]);
    }
    constexpr std::size_t few = 3;  // of a training there are more
    const bool is_other = !is_program_ && found < few;
    if (found == 0 || (found < unused_count_ && (hides || is_other))) {
      made_.takes_lists = unused_count_ > 0;
      made_.taken.assign(commands_.size(), true);
      made_.notes.clear();
      note_doubts();
      return std::move(made_);
    }
    take_launchers();
    note_left_out();
    note_doubts();
    return std::move(made_);
  }

 private:
  // The commands that train themselves: of functions that no command calls if there is no other.
  void choose() {
    choose_of(true);
    if (std::find(made_.taken.begin(), made_.taken.end(), true) == made_.taken.end()) {
      choose_of(false);
    }
  }

  void choose_of(bool called) {
    const auto take_if = [&](const auto& is_one) {
      bool has_one = false;
      for (std::size_t each = 0; each < commands_.size(); ++each) {
        const ShellCommand& command = commands_[each];
        if (command.kind != Kind::command || arguments_[each] == 0 || !is_one(each)) continue;
        if (command.is_called != called) continue;
        made_.taken[each] = true;
        has_one = true;
      }
      return has_one;
    };
    if (take_if([&](std::size_t each) {
          return is_named_for_training(commands_[each]) && !is_output(commands_[each]);
        })) {
      return;
    }
    for (const bool of_outputs : {false, true}) {
      std::size_t best = commands_.size();
      for (std::size_t each = 0; each < commands_.size(); ++each) {
        const bool is_one = commands_[each].kind == Kind::command && arguments_[each] > 0 &&
                            commands_[each].is_called == called &&
                            is_output(commands_[each]) == of_outputs;
        if (is_one && (best == commands_.size() || arguments_[each] > arguments_[best]))
          best = each;
      }
      if (best == commands_.size()) continue;
      const std::string script = script_of(commands_[best]);
      take_if([&](std::size_t each) { return script_of(commands_[each]) == script; });
      return;
    }
  }

  bool runs(std::size_t outer, std::size_t inner) const {
    int at = commands_[inner].outer;
    while (at >= 0 && at != static_cast<int>(outer)) {
      at = commands_[static_cast<std::size_t>(at)].outer;
    }
    return at >= 0;
  }

  // Of several that train it is the last, for which the others often prepare, such as a trial with
  // few steps. A command with few arguments, such as an evaluation, is none of them.
  void keep_last() {
    std::vector<std::size_t> all;
    std::size_t largest = 0;
    bool has_program = false;
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      if (!made_.taken[each]) continue;
      all.push_back(each);
      largest = std::max(largest, arguments_[each]);
      has_program = has_program || trains(commands_[each]);
    }
    if (all.size() < 2) return;
    std::size_t last = all.back();
    for (const std::size_t each : all) {
      const bool is_one = trains(commands_[each]) || !has_program;
      if (is_one && 2 * arguments_[each] >= largest) last = each;
    }
    std::vector<int> lines;
    const auto line_of = [&](std::size_t each) {
      return commands_[outermost(each)].words.front().line;
    };
    for (const std::size_t each : all) {
      const bool is_other = each != last && !runs(each, last) && !runs(last, each);
      if (each != last && !runs(each, last)) made_.taken[each] = false;
      if (is_other || each == last) lines.push_back(line_of(each));
    }
    if (lines.size() < 2) return;
    made_.notes.push_back(fmt::format("{} commands train (lines {}): that of line {} is taken",
                                      lines.size(), fmt::join(lines, ", "), line_of(last)));
  }

  // The call of a function for a command in it.
  std::size_t outermost(std::size_t inner) const {
    std::size_t found = inner;
    for (int at = commands_[inner].outer; at >= 0;
         at = commands_[static_cast<std::size_t>(at)].outer) {
      if (!commands_[static_cast<std::size_t>(at)].words.empty())
        found = static_cast<std::size_t>(at);
    }
    return found;
  }

  // One note for each variable that is in the commands.
  void note_doubts() {
    std::map<std::string, std::string> notes;
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      if (!made_.taken[each]) continue;
      for (const auto& doubt : commands_[each].doubts) notes[doubt->name] = told(*doubt);
    }
    for (auto& [name, note] : notes) made_.notes.push_back(std::move(note));
  }

  // What runs them.
  void take_launchers() {
    bool has_gpus = false;
    for (std::size_t each = commands_.size(); each-- > 0;) {
      const ShellCommand& command = commands_[each];
      const std::string program = program_of(command);
      if (command.kind == Kind::batch || program == "sbatch" || program == "salloc") {
        made_.taken[each] = true;
      }
      if (!made_.taken[each]) continue;
      has_gpus = has_gpus || says_gpus(command);
      // A text, a here-document and a function stand behind what runs them.
      if (command.outer >= 0) made_.taken[static_cast<std::size_t>(command.outer)] = true;
    }
    if (has_gpus) return;
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      if (commands_[each].kind == Kind::command && says_gpus(commands_[each]) &&
          arguments_[each] == 0) {
        made_.taken[each] = true;
      }
    }
  }

  using Words = std::set<std::pair<int, std::string>>;

  // Lists that no command uses, by the lines of their arguments.
  void find_unused() {
    Words used;
    for (const ShellCommand& each : commands_) {
      if (each.kind == Kind::list) continue;
      for (const ShellWord& word : each.words) used.insert({word.line, word.text});
    }
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      if (commands_[each].kind != Kind::list || arguments_[each] == 0) continue;
      for (const ShellWord& word : commands_[each].words) {
        const std::pair<int, std::string> place(word.line, word.text);
        if (!is_argument(word.text) || used.contains(place)) continue;
        if (unused_[commands_[each].variable].insert(place).second) ++unused_count_;
      }
    }
  }

  void note_left_out() {
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      const ShellCommand& command = commands_[each];
      if (made_.taken[each] || command.kind != Kind::command || arguments_[each] == 0) continue;
      if (is_output(command)) continue;
      const auto count =
          std::count_if(command.words.begin(), command.words.end(),
                        [](const ShellWord& word) { return is_argument(word.text); });
      made_.left_out.push_back(
          fmt::format("{} of {} (line {}){}", count, script_of(command), command.words.front().line,
                      command.is_called ? "" : ", in a function that no command calls"));
    }
    for (const auto& [variable, words] : unused_) {
      made_.left_out.push_back(
          fmt::format("{} of {} (line {}), which no command uses", words.size(),
                      variable.empty() ? "a here-document" : variable, words.begin()->first));
    }
  }

  const std::vector<ShellCommand>& commands_;
  std::vector<std::size_t> arguments_;   // of Megatron-LM, of each
  std::map<std::string, Words> unused_;  // by variable
  std::size_t unused_count_ = 0;
  bool is_program_ = false;  // named for training, and no script that may use variables
  TrainingCommands made_;
};

}  // namespace

std::string argument_name(std::string text) {
  while (!text.empty() && text.front() == '-') text.erase(0, 1);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

bool is_argument(const std::string& word) {
  return word.size() > 2 && word.rfind("--", 0) == 0 &&
         std::isalpha(static_cast<unsigned char>(word[2])) != 0;
}

ShellCommand without_unknown(const ShellCommand& command, std::vector<ShellWord>& unknown) {
  ShellCommand made = command;
  made.words.clear();
  const std::size_t script = script_at(command);
  bool is_complete = true;  // the argument that is read
  bool is_list = false;
  bool is_file = false;  // behind ">"
  for (std::size_t at = 0; at < command.words.size(); ++at) {
    const std::string& word = command.words[at].text;
    const bool is_unknown = at > script && word.rfind('$', 0) == 0;
    if (is_unknown && is_complete && !is_list && !is_file) {
      unknown.push_back(command.words[at]);
      if (is_variable(word)) continue;
    }
    if (is_argument(word)) {
      const std::string name = argument_name(word.substr(0, word.find('=')));
      is_complete = word.find('=') != std::string::npos || holds(without_value, name);
      is_list = holds(with_values, name);
    } else {
      is_complete = true;
    }
    is_file = !word.empty() && (word.back() == '>' || word.back() == '<');
    made.words.push_back(command.words[at]);
  }
  return made;
}

TrainingCommands training_commands(const std::vector<ShellCommand>& commands) {
  return Choice(commands).made();
}

}  // namespace moesim::model
