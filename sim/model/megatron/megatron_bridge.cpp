#include "sim/model/megatron/megatron_bridge.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>

#include "sim/model/megatron/megatron_words.hpp"

namespace moesim::model {
namespace {

bool is_letter(char letter) { return std::isalpha(static_cast<unsigned char>(letter)) != 0; }

bool is_of_key(char letter) {
  return letter == '_' || letter == '.' || std::isalnum(static_cast<unsigned char>(letter)) != 0;
}

struct Option {
  std::string_view letters;
  const char* argument;
};
// scripts/performance/argument_parser.py, and those long ones that mean something else than
// Megatron-LM's or a launcher's of that name.
constexpr Option options[] = {
    {"-c", "compute-dtype"},
    {"-cp", "context-parallel-size"},
    {"-ep", "expert-model-parallel-size"},
    {"-et", "expert-tensor-parallel-size"},
    {"-gb", "global-batch-size"},
    {"-gn", "gpus-per-node"},
    {"-mb", "micro-batch-size"},
    {"-ng", "gpus"},
    {"-pp", "pipeline-model-parallel-size"},
    {"-rl", "recompute-num-layers"},
    {"-sl", "seq-length"},
    {"-tp", "tensor-model-parallel-size"},
    {"-vp", "virtual-pipeline-model-parallel-size"},
    {"moe-a2a-overlap", "overlap-moe-expert-parallel-comm"},
    {"num-gpus", "gpus"},
};

}  // namespace

std::optional<Override> override_in(const std::string& word) {
  const std::size_t begin = std::min(word.find_first_not_of('+'), word.size());
  const auto equals = word.find('=');
  if (equals == std::string::npos || begin > 2 || begin >= equals || !is_letter(word[begin])) {
    return std::nullopt;
  }
  const std::string path = word.substr(begin, equals - begin);
  const auto dot = path.rfind('.');
  const bool is_precision = path == "mixed_precision";
  if (!std::all_of(path.begin(), path.end(), is_of_key)) return std::nullopt;
  if (!is_precision && (dot == std::string::npos || dot + 1 == path.size())) return std::nullopt;
  const std::string name = dot == std::string::npos ? path : path.substr(dot + 1);
  return Override{path.substr(0, std::min(path.find('.'), path.size())), argument_name(name),
                  word.substr(equals + 1)};
}

bool is_short_option(const std::string& word) {
  return word.size() > 1 && word.front() == '-' && is_letter(word[1]);
}

bool is_performance_script(const std::string& script) {
  const std::string name = script.substr(script.rfind('/') + 1);
  constexpr std::string_view names[] = {"setup_experiment.py", "run_performance_workload.py",
                                        "run_script.py"};
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::optional<std::string> performance_argument(const std::string& option) {
  const auto* const found =
      std::find_if(std::begin(options), std::end(options),
                   [&](const Option& each) { return each.letters == option; });
  return found == std::end(options) ? std::nullopt : std::optional<std::string>(found->argument);
}

}  // namespace moesim::model
