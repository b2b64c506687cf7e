#include "tools/moesim/megatron/megatron_typed.hpp"

#include <utility>

#include "sim/job/job_options.hpp"
#include "sim/model/megatron/megatron_model.hpp"

namespace moesim::tool {
namespace {

constexpr std::pair<const char*, const char*> undeclared[] = {
    {"expert-tensor-parallel", "expert-tensor-parallel-size"},
    {"context-method", "cp-comm-type"},
    {"virtual-pipeline", "num-layers-per-virtual-pipeline-stage"},
    {"pipeline-layout", "decoder-first-pipeline-num-layers"},
    {"pipeline-layout", "decoder-last-pipeline-num-layers"},
    {"pipeline-layout", "account-for-embedding-in-pipeline-split"},
    {"pipeline-layout", "account-for-loss-in-pipeline-split"},
    {"pipeline-layout", "num-layers-per-virtual-pipeline-stage"},
    {"pipeline-layout", "num-virtual-stages-per-pipeline-rank"},
    {"precision", "fp8-format"},
    {"precision", "fp8-recipe"},
    {"precision", "fp4-format"},
    {"gradients", "main-grads-dtype"},
    {"optimizer-moments", "exp-avg-dtype"},
    {"optimizer-moments", "exp-avg-sq-dtype"},
    {"recompute", "recompute-granularity"},
    {"recompute", "recompute-modules"},
    {"recompute", "recompute-method"},
    {"recompute", "recompute-num-layers"},
    {"offload", "offload-modules"},
    {"zero", "use-distributed-optimizer"},
    {"zero", "use-megatron-fsdp"},
    {"zero", "use-torch-fsdp2"},
    {"zero", "data-parallel-sharding-strategy"},
    {"zero", "zero-stage"},
    {"dispatcher", "moe-token-dispatcher-type"},
    {"dispatcher", "moe-flex-dispatcher-backend"},
    {"priority", "moe-token-drop-policy"},
    {"router-dialect", "moe-token-drop-policy"},
    {"router-dialect", "moe-min-capacity"},
    {"min-capacity", "moe-min-capacity"},
    {"cuda-graphs", "cuda-graph-impl"},
    {"cuda-graphs", "cuda-graph-scope"},
    {"cuda-graphs", "cuda-graph-modules"},
};

}  // namespace

void each_option_argument(
    const std::function<void(const std::string& option, const char* argument)>& take) {
  for (const job::JobOption& option : job::job_options()) {
    for (const auto& argument : option.megatron) take(option.name, argument.name);
  }
  for (const auto& [option, argument] : undeclared) take(option, argument);
}

void spare_typed(model::MegatronArguments& given, const CommandLine& line) {
  each_option_argument([&](const std::string& option, const char* argument) {
    if (line.has(option)) given.spare(argument);
  });
  if (line.has("model")) model::spare_model_arguments(given);
}

}  // namespace moesim::tool
