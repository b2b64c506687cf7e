#include "tools/moesim/train/megatron_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "sim/base/text.hpp"
#include "sim/job/job_options.hpp"
#include "sim/model/megatron_model.hpp"
#include "sim/parallel/pipeline_layout.hpp"
#include "tools/moesim/output.hpp"

namespace moesim::tool {
namespace {

using model::MegatronArguments;
using Options = std::map<std::string, std::string>;

constexpr const char* megatron_flag = "megatron";

// Arguments that change nothing that a step's time or memory is predicted from; those that end in a
// dash are beginnings.
constexpr std::array no_effect = {"adam-",
                                  "apply-layernorm-",
                                  "apply-query-",
                                  "async-",
                                  "attention-backend",
                                  "attention-dropout",
                                  "attention-softmax-",
                                  "auto-detect-",
                                  "beta-",
                                  "bf16",
                                  "bias-",
                                  "calculate-",
                                  "ckpt-",
                                  "clip-grad",
                                  "cross-entropy-",
                                  "data-",
                                  "dataloader-",
                                  "decoupled-",
                                  "disable-bias-linear",
                                  "dist-ckpt-",
                                  "distributed-backend",
                                  "distributed-timeout-",
                                  "end-weight-",
                                  "eval-",
                                  "exit-",
                                  "export-",
                                  "finetune",
                                  "hidden-dropout",
                                  "init-method-",
                                  "iteration",
                                  "load",
                                  "log-",
                                  "lr",
                                  "lr-",
                                  "make-vocab-",
                                  "manual-gc",
                                  "manual-gc-",
                                  "max-position-",
                                  "merge-file",
                                  "min-lr",
                                  "mock-data",
                                  "moe-aux-",
                                  "moe-grouped-gemm",
                                  "moe-per-layer-",
                                  "moe-permute-fusion",
                                  "moe-router-",
                                  "moe-z-loss-",
                                  "mscale",
                                  "mscale-",
                                  "mtp-loss-",
                                  "no-async-",
                                  "no-bias-",
                                  "no-check-",
                                  "no-create-",
                                  "no-load-",
                                  "no-masked-",
                                  "no-mmap-",
                                  "no-position-",
                                  "no-rope-",
                                  "no-save-",
                                  "norm-epsilon",
                                  "normalization",
                                  "num-workers",
                                  "optimizer",
                                  "original-max-",
                                  "override-opt-",
                                  "position-embedding-",
                                  "profile",
                                  "profile-",
                                  "rotary-",
                                  "save",
                                  "save-",
                                  "seed",
                                  "sgd-",
                                  "split",
                                  "start-weight-",
                                  "te-rng-",
                                  "tensorboard-",
                                  "test-data-",
                                  "tiktoken-",
                                  "timing-",
                                  "tokenizer-",
                                  "train-data-",
                                  "train-iters",
                                  "train-samples",
                                  "transformer-impl",
                                  "use-checkpoint-",
                                  "use-cpu-initialization",
                                  "use-dist-ckpt",
                                  "use-flash-attn",
                                  "use-legacy-",
                                  "use-mcore-",
                                  "use-rotary-",
                                  "valid-data-",
                                  "vocab-file",
                                  "wandb-",
                                  "weight-decay",
                                  "weight-decay-"};

// Of torchrun and of Slurm.
constexpr std::array launcher = {
    "account",      "container-", "cpus-per-", "dependency",    "error",       "exclusive",
    "export",       "gres",       "job-name",  "label",         "master-addr", "master-port",
    "max-restarts", "mem",        "mpi",       "no-container-", "node-rank",   "ntasks",
    "output",       "partition",  "rdzv-",     "redirects",     "role",        "standalone",
    "tee",          "time"};

template <class Table>
bool is_one_of(const std::string& name, const Table& known) {
  return std::any_of(known.begin(), known.end(), [&](const std::string& each) {
    return each.back() == '-' ? name.rfind(each, 0) == 0 : name == each;
  });
}

void take_gpus(const MegatronArguments& given, Options& options) {
  const auto nodes = given.size("nnodes") ? given.size("nnodes") : given.size("nodes");
  auto each = given.size("nproc-per-node");
  if (!each) each = given.size("gpus-per-node");
  if (!each) each = given.size("ntasks-per-node");
  if (each) options["gpus"] = fmt::format("{}", nodes.value_or(1) * *each);
}

// What options say of themselves.
void take_declared(const MegatronArguments& given, Options& options) {
  for (const job::JobOption& option : job::job_options()) {
    for (const auto& [argument, value] : option.megatron) {
      if (*value != '\0') {
        if (given.has(argument)) options[option.name] = value;
      } else if (const auto text = given.text(argument)) {
        options[option.name] = *text;
      }
    }
  }
}

void take_layout(const MegatronArguments& given, Options& options) {
  // Megatron's default of an expert's slices is the tensor ranks.
  const auto tensor = given.size("tensor-model-parallel-size").value_or(1);
  options["expert-tensor-parallel"] =
      fmt::format("{}", given.size("expert-tensor-parallel-size").value_or(tensor));
  if (!given.has("expert-model-parallel-size")) options["expert-parallel"] = "1";
  if (!given.has("num-experts")) {
    options["expert-tensor-parallel"] = "1";
  }
  if (const auto each = given.size("num-layers-per-virtual-pipeline-stage")) {
    const auto layers = given.size("num-layers");
    const auto ranks = given.size("pipeline-model-parallel-size").value_or(1);
    if (!layers || *layers % (ranks * *each) != 0) {
      given.fail("num-layers-per-virtual-pipeline-stage",
                 "does not divide the layers of a pipeline rank (--num-layers)");
    }
    options["virtual-pipeline"] = fmt::format("{}", *layers / ranks / *each);
  }
  // Megatron puts multi-token prediction on the last stage.
  const auto depths = given.size("mtp-num-layers");
  const auto layers = given.size("num-layers");
  if (depths && layers && !options.contains("pipeline-layout")) {
    const auto ranks = given.size("pipeline-model-parallel-size").value_or(1);
    const auto each = options.find("virtual-pipeline");
    const auto chunks =
        ranks * (each == options.end() ? 1 : parse_number<std::int64_t>(each->second).value_or(1));
    if (chunks > 0 && chunks <= *layers && *layers % chunks == 0) {
      options["pipeline-layout"] =
          parallel::even_pipeline_layout(static_cast<int>(*layers), static_cast<int>(chunks),
                                         static_cast<int>(*depths))
              .text();
    }
  }
  given.has("delay-wgrad-compute");  // what --ep-overlap takes for granted
  if (const auto method = given.text("cp-comm-type")) {
    static const Options known = {
        {"p2p", "ring"}, {"all_gather", "all-gather"}, {"a2a", "all-to-all"}};
    const auto found = known.find(*method);
    if (found == known.end()) {
      given.fail("cp-comm-type", fmt::format("'{}': known are p2p, all_gather, a2a", *method));
    }
    options["context-method"] = found->second;
  }
  const bool needs = tensor > 1 && given.has("num-experts");
  if (!given.has("sequence-parallel") && needs) {
    throw UsageError(fmt::format(
        "{}: --sequence-parallel is missing: Megatron-Core trains MoE layers with tensor "
        "parallelism only with it",
        given.name()));
  }
}

void take_precision(const MegatronArguments& given, Options& options) {
  if (given.has("fp16")) given.fail("fp16", "steps in fp16 are not modelled; bf16 takes as long");
  if (given.has("fp4-format")) {
    options["precision"] = "nvfp4";
    given.text("fp4-recipe");
  } else if (given.has("fp8-format")) {
    static const Options known = {{"delayed", "fp8-delayed"},
                                  {"tensorwise", "fp8-current"},
                                  {"blockwise", "fp8-block"},
                                  {"mxfp8", "mxfp8"}};
    const std::string recipe = given.text("fp8-recipe").value_or("delayed");
    const auto found = known.find(recipe);
    if (found == known.end()) {
      given.fail("fp8-recipe",
                 fmt::format("'{}': known are delayed, tensorwise, blockwise, mxfp8", recipe));
    }
    options["precision"] = found->second;
  }
  if (given.text("exp-avg-dtype").value_or("fp32") == "bf16" &&
      given.text("exp-avg-sq-dtype").value_or("fp32") == "bf16") {
    options["optimizer-moments"] = "bf16";
  }
  options["gradients"] = given.has("grad-reduce-in-bf16") ? "bf16" : "fp32";
  given.has("accumulate-allreduce-grads-in-fp32");
  given.has("use-precision-aware-optimizer");
  for (const char* implied : {"fp8-param-gather", "fp8-margin", "fp8-interval",
                              "fp8-amax-history-len", "fp8-amax-compute-algo"}) {
    given.has(implied);
  }
}

void take_recompute(const MegatronArguments& given, Options& options) {
  const std::string granularity =
      given.text("recompute-granularity")
          .value_or(given.has("recompute-activations") ? "selective" : "none");
  const std::vector<std::string> modules = given.texts("recompute-modules");
  const std::string method = given.text("recompute-method").value_or("");
  const std::int64_t layers = given.size("recompute-num-layers").value_or(1);
  if (granularity == "full") {
    options["recompute"] = method.empty() ? "full" : fmt::format("full:{}:{}", method, layers);
  } else if (granularity == "selective") {
    options["recompute"] =
        modules.empty() ? "core_attn" : fmt::format("{}", fmt::join(modules, ","));
  } else if (granularity != "none") {
    given.fail("recompute-granularity",
               fmt::format("'{}': known are full, selective", granularity));
  }
}

void take_offload(const MegatronArguments& given, Options& options) {
  const std::vector<std::string> modules = given.texts("offload-modules");
  if (given.has("fine-grained-activation-offloading")) {
    options["offload"] = fmt::format("{}", fmt::join(modules, ","));
  }
}

void take_states(const MegatronArguments& given, Options& options) {
  options["zero"] = given.has("use-distributed-optimizer") ? "1" : "0";
  std::vector<std::string> assumed;
  for (const char* argument : {"overlap-grad-reduce", "overlap-param-gather"}) {
    if (!given.has(argument)) assumed.push_back(fmt::format("--{}", argument));
  }
  const bool low = given.has("fp8-format") || given.has("fp4-format");
  if (!low && !given.has("bf16") && !given.has("mixed-precision")) assumed.emplace_back("--bf16");
  if (!assumed.empty()) {
    note(
        fmt::format("note: {}: priced as with {}, which it does not have: Megatron-LM's step is "
                    "longer without",
                    given.name(), fmt::join(assumed, ", ")));
  }
  if (!given.has("use-megatron-fsdp") && !given.has("use-custom-fsdp")) return;
  static const Options known = {
      {"no_shard", "0"}, {"optim", "1"}, {"optim_grads", "2"}, {"optim_grads_params", "3"}};
  const std::string strategy = given.text("data-parallel-sharding-strategy").value_or("no_shard");
  const auto found = known.find(strategy);
  if (found == known.end()) {
    given.fail(
        "data-parallel-sharding-strategy",
        fmt::format("'{}': known are no_shard, optim, optim_grads, optim_grads_params", strategy));
  }
  options["zero"] = found->second;
}

void take_experts(const MegatronArguments& given, Options& options) {
  const std::string type = given.text("moe-token-dispatcher-type").value_or("allgather");
  if (given.has("num-experts") && type == "allgather" &&
      given.size("expert-model-parallel-size").value_or(1) > 1) {
    note(fmt::format("note: {}: --moe-token-dispatcher-type allgather is priced as an all-to-all",
                     given.name()));
  }
  if (type == "flex") {
    options["dispatcher"] = given.text("moe-flex-dispatcher-backend").value_or("deepep");
  }
  given.has("moe-enable-deepep");
  for (const char* shape :
       {"moe-deepep-num-sms", "moe-hybridep-num-sms", "moe-shared-expert-overlap"}) {
    given.has(shape);
  }
  if (given.has("moe-expert-capacity-factor")) {
    options["padding"] = given.has("moe-pad-expert-input-to-capacity") ? "capacity" : "none";
    if (given.text("moe-token-drop-policy").value_or("probs") == "position") {
      options["priority"] = "position";
    }
  }
}

void take_graphs(const MegatronArguments& given, Options& options) {
  std::vector<std::string> scope = given.texts("cuda-graph-scope");
  const std::vector<std::string> modules = given.texts("cuda-graph-modules");
  scope.insert(scope.end(), modules.begin(), modules.end());
  const bool asked = given.has("enable-cuda-graph") || given.has("external-cuda-graph") ||
                     given.text("cuda-graph-impl").value_or("none") != "none";
  given.has("cuda-graph-warmup-steps");
  if (!asked) return;
  const auto holds = [&](const char* name) {
    return std::find(scope.begin(), scope.end(), name) != scope.end();
  };
  const bool layers = scope.empty() || holds("full_iteration") || holds("full") || holds("moe");
  options["cuda-graphs"] = layers ? "layers" : holds("attn") ? "parts" : "router";
}

void note_rest(const MegatronArguments& given, std::size_t taken) {
  std::vector<std::string> unknown;
  std::size_t idle = 0;
  for (const std::string& name : given.not_asked()) {
    if (is_one_of(name, no_effect) || is_one_of(name, launcher)) {
      ++idle;
    } else {
      unknown.push_back("--" + name);
    }
  }
  note(
      fmt::format("megatron: {}: {} options from it, {} arguments without effect on a step, {} "
                  "not understood{}{}",
                  given.name(), taken, idle, unknown.size(), unknown.empty() ? "" : ": ",
                  fmt::join(unknown, " ")));
}

}  // namespace

Flag megatron_input() {
  return {megatron_flag, "FILE", "none",
          "a launch script or YAML of Megatron-LM, whose arguments are taken as options, below "
          "those given here; what is not understood is listed"};
}

CommandLine with_megatron(const Command& command, CommandLine line) {
  if (!line.has(megatron_flag)) return line;
  const MegatronArguments given = MegatronArguments::load(line.get(megatron_flag));
  Options options;
  take_gpus(given, options);
  take_declared(given, options);
  take_layout(given, options);
  take_precision(given, options);
  take_recompute(given, options);
  take_offload(given, options);
  take_states(given, options);
  take_experts(given, options);
  take_graphs(given, options);
  if (!line.has("model")) {
    model::megatron_model(given);  // for its errors, and what it asks for
    options["model"] = given.name();
  }
  std::size_t taken = 0;
  for (const auto& option : options) {
    const auto known = std::find_if(command.flags.begin(), command.flags.end(),
                                    [&](const Flag& flag) { return flag.name == option.first; });
    if (known == command.flags.end()) continue;
    if (line.values.insert(option).second) ++taken;
  }
  note_rest(given, taken);
  return line;
}

}  // namespace moesim::tool
