#include "tools/moesim/megatron/megatron_bridge_script.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "sim/base/text.hpp"
#include "sim/job/job_options.hpp"
#include "tools/moesim/base/output.hpp"

namespace moesim::tool {
namespace {

// scripts/performance/argument_parser.py
constexpr std::pair<std::string_view, const char*> gpus_of_bridge[] = {
    {"a100", "a100-sxm-80gb"}, {"h100", "h100-sxm"}, {"h200", "h200-sxm"}, {"b200", "b200-sxm"},
    {"b300", "b300-sxm"},      {"gb200", "gb200"},   {"gb300", "gb300"}};

constexpr const char* bridge_software = "megatron-bridge";

void take_gpu(MegatronInput& input) {
  const auto gpu = input.given.known_text("gpu");
  if (!gpu || input.typed("profile") || input.typed("cluster")) return;
  const auto* const known = std::find_if(std::begin(gpus_of_bridge), std::end(gpus_of_bridge),
                                         [&](const auto& each) { return each.first == *gpu; });
  if (known == std::end(gpus_of_bridge)) {
    return note(fmt::format("warning: {}: --gpu {} is not known, and not taken: give --profile",
                            input.given.name(), *gpu));
  }
  input.options["profile"] = known->second;
}

// Slurm's "gpu:a100:8": which GPU the job asks for.
void note_gpu_of_slurm(const MegatronInput& input) {
  std::string usual;
  for (const job::JobOption& option : job::job_options()) {
    if (option.name == "profile") usual = option.default_text;
  }
  for (const char* argument : {"gres", "gpus", "gpus-per-node", "gpus-per-task"}) {
    const std::string text = input.given.known_text(argument).value_or("");
    for (const std::string_view part : split(text, ':')) {
      const auto* const known = std::find_if(std::begin(gpus_of_bridge), std::end(gpus_of_bridge),
                                             [&](const auto& each) { return each.first == part; });
      if (known == std::end(gpus_of_bridge) || usual == known->second) continue;
      return note(
          fmt::format("note: {}: --{} {} names another GPU than the default {}: give "
                      "--profile {}",
                      input.given.name(), argument, text, usual, known->second));
    }
  }
}

}  // namespace

void take_bridge(MegatronInput& input, bool is_priced) {
  if (is_priced && !input.typed("profile") && !input.typed("cluster")) note_gpu_of_slurm(input);
  if (!input.given.is_of_bridge()) return;
  input.given.has("gpu");
  if (!is_priced) return;
  take_gpu(input);
  const std::string profile = input.line.get("profile");
  const bool is_document = profile.find_first_of("/.") != std::string::npos;  // of calibrate
  if (input.typed("software") || is_document) return;
  note(
      fmt::format("note: {}: its command is Megatron-Bridge's: with --software {} the band is by "
                  "steps measured with it",
                  input.given.name(), bridge_software));
}

}  // namespace moesim::tool
