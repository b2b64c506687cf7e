#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/scenario/options.hpp"
#include "tests/support/catch.hpp"

namespace moesim::support {

// Small, with a router that each option of the router has a meaning for.
inline scenario::OptionValues usual_values() {
  return {{"profile", "a100-sxm-80gb"}, {"cluster", "dgx-a100"},
          {"model", "switch-base-8"},   {"gpus", "16"},
          {"expert-parallel", "4"},     {"experts", "16"},
          {"router", "top2+fr+ir"},     {"capacity-factor", "1"},
          {"sequence-length", "128"},   {"micro-batch", "2"},
          {"overlap-slowdown", "1:1"}};
}

// Other legal values, where the type alone does not give one.
inline std::vector<std::string> other_values(const scenario::Option& option) {
  static const std::map<std::string, std::vector<std::string>> known{
      {"profile", {"h100-sxm"}},
      {"model", {"llama2-7b-moe8"}},
      {"cluster", {"gb200-nvl72"}},
      {"gpus", {"32"}},
      {"expert-parallel", {"8"}},
      {"experts", {"32"}},
      {"expert-placement", {"round-robin"}},
      {"top-k", {}},  // the router's name says it
      {"router", {"top1+fr+ir"}},
      {"capacity-factor", {"1.5"}},
      {"sequence-length", {"256"}},
      {"micro-batch", {"4"}},
      {"global-batch", {"64"}},
      {"tokens-per-gpu", {"512"}},
      {"routing", {"zipf:1"}},
      {"expert-products", {"batched"}},  // fused: forward alone
      {"expert-bias", {}},               // a file
      {"dispatcher", {}},                // carries rows that are not padded
      {"slow-gpu", {"1:2"}},
      {"slow-link", {"1:2"}},
      {"overlap-slowdown", {"1.1:1.2"}},
      {"zero", {"2"}},
      {"jitter", {"0.1"}}};
  if (const auto found = known.find(option.name); found != known.end()) return found->second;
  std::vector<std::string> values;
  for (const scenario::NamedValue& value : option.values) values.push_back(value.name);
  if (option.type == scenario::OptionType::whole) {
    values.push_back(std::to_string(std::get<std::int64_t>(option.minimum) + 7));
  }
  if (const auto* most = std::get_if<Decimal>(&option.maximum)) values.push_back(most->text());
  REQUIRE_FALSE(values.empty());
  return values;
}

}  // namespace moesim::support
