// Options of Megatron-Bridge's performance scripts.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/model/megatron/megatron_arguments.hpp"
#include "sim/model/megatron/megatron_keys.hpp"

namespace moesim::model {

// The recipes are those of Megatron-Bridge's scripts/performance/utils/precision.py.
void MegatronArguments::put_compute_type(const std::string& type, int line) {
  constexpr std::pair<std::string_view, const char*> recipes[] = {
      {"bf16", "bf16_mixed"},
      {"fp8_cs", "bf16_with_fp8_current_scaling_mixed"},
      {"fp8_ds", "bf16_with_fp8_delayed_scaling_mixed"},
      {"fp8_mx", "bf16_with_mxfp8_mixed"},
      {"fp8_sc", "bf16_with_fp8_subchannel_scaling_mixed"},
      {"nvfp4", "bf16_with_nvfp4_mixed"}};
  const auto* const known = std::find_if(std::begin(recipes), std::end(recipes),
                                         [&](const auto& each) { return each.first == type; });
  if (known == std::end(recipes)) {
    throw UsageError(fmt::format(
        "{}: --compute_dtype: '{}': known are bf16, fp8_cs, fp8_ds, fp8_mx, fp8_sc, nvfp4",
        files_.address(line), type));
  }
  const Place place{line, rank_of_precision, true};
  put_key("mixed-precision", known->second, {}, place);
  put({"first-last-layers-bf16", {}, false}, place);
  put({"grad-reduce-in-bf16"}, place);
}

void MegatronArguments::put_performance_option(const std::string& option,
                                               const std::vector<std::string>& values, int line) {
  const std::string key = performance_argument(option).value_or(option);
  std::string value = values.empty() ? "" : values.front();
  if (key == "compute-dtype") return put_compute_type(value, line);
  if (value.find(',') != std::string::npos) value = "[" + value + "]";
  put_key(key, value, {}, {line, 0, true});
}

// What the performance scripts set beside an option (utils/overrides.py).
void MegatronArguments::put_besides_performance_options() {
  if (has("recompute-modules")) {
    put_usual("recompute-granularity", {"selective"});
  } else if (has("recompute-num-layers")) {
    put_usual("recompute-granularity", {"full"});
    put_usual("recompute-method", {"block"});
  }
  if (has("moe-flex-dispatcher-backend")) put_usual("moe-token-dispatcher-type", {"flex"});
  if (has("overlap-moe-expert-parallel-comm")) put_usual("delay-wgrad-compute", {});
}

}  // namespace moesim::model
