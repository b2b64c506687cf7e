#include "sim/model/megatron/megatron_words.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <optional>
#include <string_view>

#include "sim/model/megatron/megatron_bridge.hpp"

namespace moesim::model {
namespace {

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

// Arguments that have no value, and those that may have several; as above.
constexpr std::string_view without_value[] = {"accumulate-allreduce-grads-in-fp32",
                                              "attention-output-gate",
                                              "attention-softmax-in-fp32",
                                              "bf16",
                                              "calculate-per-token-loss",
                                              "cross-entropy-loss-fusion",
                                              "disable-",
                                              "enable-",
                                              "finetune",
                                              "fp8-param-gather",
                                              "group-query-attention",
                                              "manual-gc",
                                              "mock-data",
                                              "moe-grouped-gemm",
                                              "moe-permute-fusion",
                                              "moe-router-fusion",
                                              "moe-router-pre-softmax",
                                              "moe-shared-expert-overlap",
                                              "multi-latent-attention",
                                              "no-",
                                              "overlap-grad-reduce",
                                              "overlap-moe-expert-parallel-comm",
                                              "overlap-param-gather",
                                              "qk-layernorm",
                                              "recompute-activations",
                                              "sequence-parallel",
                                              "swiglu",
                                              "untie-embeddings-and-output-weights",
                                              "use-"};
constexpr std::string_view with_values[] = {"cuda-graph-modules", "cuda-graph-scope",
                                            "data-path",          "moe-aux-loss-coeff",
                                            "offload-modules",    "moe-router-load-balancing-type",
                                            "recompute-modules",  "test-data-path",
                                            "train-data-path",    "valid-data-path"};

template <std::size_t Count>
bool holds(const std::string_view (&names)[Count], const std::string& name) {
  return std::any_of(std::begin(names), std::end(names), [&](std::string_view known) {
    return known.back() == '-' ? name.rfind(known, 0) == 0 : name == known;
  });
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
std::size_t script_at(const shell::Command& command) {
  const std::vector<shell::Word>& words = command.words;
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

// The name in "--seq-length=4096" or "model.seq_length=4096"; "" for another word.
std::string name_in(const std::string& word) {
  if (is_argument(word)) return argument_name(word.substr(0, word.find('=')));
  const std::optional<Override> override = override_in(word);
  return override ? override->name : performance_argument(word).value_or("");
}

// NAME of "$NAME", "${NAME}" and "${NAME[@]}"; "" of another word.
std::string variable_in(const std::string& word) {
  const bool is_braced = word.rfind("${", 0) == 0 && word.back() == '}';
  std::string name = is_braced ? word.substr(2, word.size() - 3)
                               : word.substr(std::min<std::size_t>(1, word.size()));
  if (is_braced && (ends_with(name, "[@]") || ends_with(name, "[*]"))) name.resize(name.size() - 3);
  return std::all_of(name.begin(), name.end(), shell::is_name) ? name : "";
}

// It may be empty, or have arguments: a variable that is not known, the output of a command.
bool may_be_arguments(const std::string& word) {
  const bool is_output = word.size() > 2 && (word.rfind("$(", 0) == 0 || word.front() == '`') &&
                         word.back() == (word.front() == '`' ? '`' : ')');
  return is_output || !variable_in(word).empty();
}

// Whether a word holds arguments, by its name or its form, even behind an argument that may have a
// value.
bool holds_arguments(const std::string& word) {
  const std::string name = variable_in(word);
  const bool is_array = !name.empty() && word.back() == '}' && word[word.size() - 2] == ']';
  return is_array || ends_with(name, "ARGS") || ends_with(name, "ARGUMENTS") ||
         ends_with(name, "OPTIONS") || ends_with(name, "OPTS") || ends_with(name, "FLAGS");
}

}  // namespace

std::size_t arguments_of(const shell::Command& command) {
  if (program_of(command) == "for") return 0;
  return static_cast<std::size_t>(std::count_if(
      command.words.begin(), command.words.end(),
      [](const shell::Word& word) { return holds(of_training, name_in(word.text)); }));
}

std::string program_of(const shell::Command& command) {
  const std::size_t at = command.program();
  if (at == command.words.size()) return "";
  const std::string& word = command.words[at].text;
  return word.substr(word.rfind('/') + 1);
}

std::string script_of(const shell::Command& command) {
  const std::size_t at = script_at(command);
  return at < command.words.size() ? command.words[at].text : program_of(command);
}

bool is_named_for_training(const shell::Command& command) {
  const std::size_t at = script_at(command);
  return at < command.words.size() && is_named_for_training(command.words[at].text);
}

bool trains(const shell::Command& command) {
  return is_named_for_training(command) && !ends_with(script_of(command), "sh");
}

bool is_output(const shell::Command& command) {
  const std::string program = program_of(command);
  return program == "echo" || program == "printf";
}

bool says_gpus(const shell::Command& command) {
  constexpr std::array names = {
      "nproc-per-node", "nnodes",        "nodes", "ntasks",   "gpus-per-node", "ntasks-per-node",
      "gres",           "gpus-per-task", "np",    "num-gpus", "num-nodes",     "num-processes"};
  return std::any_of(command.words.begin(), command.words.end(), [&](const shell::Word& word) {
    if (!is_argument(word.text)) return false;
    const std::string name = argument_name(word.text.substr(0, word.text.find('=')));
    return std::find(names.begin(), names.end(), name) != names.end();
  });
}

bool hides_arguments(const shell::Command& command) {
  const std::vector<shell::Word>& words = command.words;
  const std::size_t script = script_at(command);
  for (std::size_t at = script < words.size() ? script + 1 : 1; at < words.size(); ++at) {
    const bool is_value =
        is_argument(words[at - 1].text) && words[at - 1].text.find('=') == std::string::npos;
    if (words[at].text.find_first_of("$`") == 0 && !is_value) return true;
  }
  return false;
}

std::string shortened(const std::string& text) {
  constexpr std::size_t longest = 60;
  if (text.empty()) return "empty";
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

std::string argument_name(std::string text) {
  while (!text.empty() && text.front() == '-') text.erase(0, 1);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

bool is_argument(const std::string& word) {
  return word.size() > 2 && word.rfind("--", 0) == 0 &&
         std::isalpha(static_cast<unsigned char>(word[2])) != 0;
}

shell::Command without_unknown(const shell::Command& command, std::vector<shell::Word>& unknown) {
  shell::Command made = command;
  made.words.clear();
  const std::size_t script = script_at(command);
  bool is_complete = true;  // the argument that is read
  bool is_list = false;
  bool is_file = false;  // behind ">"
  for (std::size_t at = 0; at < command.words.size(); ++at) {
    const std::string& word = command.words[at].text;
    const bool is_unknown = at > script && word.find_first_of("$`") == 0;
    const bool adds_input = at < script && (word == "xargs" || word == "parallel");
    if (adds_input) unknown.push_back({word + "'s input", command.words[at].line});
    if (is_unknown && (is_complete || holds_arguments(word)) && !is_list && !is_file) {
      unknown.push_back(command.words[at]);
      is_complete = true;
      if (may_be_arguments(word)) continue;
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

}  // namespace moesim::model
