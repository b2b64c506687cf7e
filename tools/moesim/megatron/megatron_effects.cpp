#include "tools/moesim/megatron/megatron_effects.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/moesim/base/output.hpp"

namespace moesim::tool {
namespace {

using model::MegatronArguments;

// "unfused" of "AttnBackend.unfused".
std::string last_name(const std::string& text) { return text.substr(text.rfind('.') + 1); }

void refuse_attention(const MegatronArguments& given) {
  const std::string backend = last_name(given.known_text("attention-backend").value_or("auto"));
  if (backend == "unfused" || backend == "local") {
    given.fail("attention-backend",
               fmt::format("'{}' keeps the scores of all pairs of tokens, which is not modelled; "
                           "known are auto, flash, fused",
                           backend));
  }
  const bool is_flash = given.has("use-flash-attn");
  if (!is_flash && given.known_text("transformer-impl").value_or("") == "local") {
    given.fail("transformer-impl",
               "'local' keeps the scores of all pairs of tokens, which is not modelled; known are "
               "transformer_engine, and local with --use-flash-attn");
  }
}

void refuse_optimizers(const MegatronArguments& given) {
  for (const char* argument : {"optimizer", "optimizer-type"}) {
    const std::string optimizer = given.known_text(argument).value_or("adam");
    if (optimizer == "adam" || optimizer == "adamw") continue;
    given.fail(
        argument,
        fmt::format("'{}': its states and its work are not modelled; known is adam", optimizer));
  }
}

bool is_low(const MegatronArguments& given) {
  return given.has("fp8-format") || given.has("fp4-format");
}

// Where Megatron-LM's default is another value than that which is given.
constexpr std::pair<const char*, std::string_view> with_defaults[] = {
    {"moe-deepep-num-sms", "20"},
    {"moe-hybridep-num-sms", "16"},
    {"moe-router-load-balancing-type", "aux_loss"},
};

// The three losses for balance cost the same.
bool is_balance_by_loss(const std::string& value) {
  return value == "none" || value.find("aux_loss") != std::string::npos;
}

// Whether an argument is of the kernels of the flexible dispatcher alone.
bool ends_in_sms(std::string_view argument) {
  return argument.substr(argument.size() - 4) == "-sms";
}

std::vector<std::string> left_out(const MegatronArguments& given) {
  std::vector<std::string> found;
  const bool is_flexible = given.known_text("moe-token-dispatcher-type").value_or("") == "flex";
  for (const auto& [argument, usual] : with_defaults) {
    const std::string value = given.known_text(argument).value_or(std::string(usual));
    if (value == usual || is_balance_by_loss(value)) continue;
    if (ends_in_sms(argument) && !is_flexible) continue;
    found.push_back(fmt::format("--{} {}", argument, value));
  }
  for (const char* argument : {"moe-shared-expert-overlap", "optimizer-cpu-offload"}) {
    if (given.has(argument)) found.push_back(fmt::format("--{}", argument));
  }
  for (const char* layers : {"num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16"}) {
    given.has(layers);
  }
  if (given.has("first-last-layers-bf16") && is_low(given)) {
    found.emplace_back("--first-last-layers-bf16");
  }
  if (given.has("use-flash-attn") && given.known_text("transformer-impl").value_or("") == "local") {
    found.emplace_back("--transformer-impl local");
  }
  return found;
}

}  // namespace

void check_effects(const MegatronArguments& given) {
  refuse_attention(given);
  refuse_optimizers(given);
  const std::vector<std::string> found = left_out(given);
  if (found.empty()) return;
  note(fmt::format("note: {}: priced as without {}, whose effect on a step is not modelled",
                   given.name(), fmt::join(found, ", ")));
}

}  // namespace moesim::tool
