#include "tools/moesim/train/megatron_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "sim/base/text.hpp"
#include "sim/job/job_options.hpp"
#include "sim/model/megatron_model.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/study/sweep/grid.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/train/megatron_stages.hpp"

namespace moesim::tool {
namespace {

using model::MegatronArguments;
using Options = std::map<std::string, std::string>;

constexpr const char* megatron_flag = "megatron";

// Arguments that change nothing that a step's time or memory is predicted from; those that end in a
// dash are beginnings.
constexpr std::array no_effect = {"adam-",
                                  "add-qkv-bias",
                                  "allow-ambiguous-pad-",
                                  "apply-layernorm-",
                                  "apply-query-",
                                  "async-",
                                  "attention-backend",
                                  "attention-dropout",
                                  "attention-softmax-",
                                  "auto-detect-",
                                  "average-in-collective",
                                  "barrier-with-",
                                  "beta-",
                                  "bf16",
                                  "bias-",
                                  "calculate-",
                                  "check-",
                                  "ckpt-",
                                  "clip-grad",
                                  "config-logger-",
                                  "create-attention-mask-",
                                  "cross-entropy-",
                                  "data-",
                                  "dataloader-",
                                  "decoupled-",
                                  "disable-bias-linear",
                                  "disable-gloo-",
                                  "disable-msc",
                                  "disable-straggler-",
                                  "dist-ckpt-",
                                  "distributed-backend",
                                  "distributed-timeout-",
                                  "enable-experimental",
                                  "enable-ft-",
                                  "enable-gloo-",
                                  "enable-one-logger",
                                  "end-weight-",
                                  "eod-mask-loss",
                                  "error-injection-",
                                  "eval-",
                                  "exit-",
                                  "export-",
                                  "finetune",
                                  "full-validation",
                                  "hidden-dropout",
                                  "hysteresis",
                                  "init-method-",
                                  "initial-loss-",
                                  "iteration",
                                  "iterations-to-skip",
                                  "legacy-tokenizer",
                                  "load",
                                  "local-rank",
                                  "log-",
                                  "logging-level",
                                  "loss-scale",
                                  "loss-scale-",
                                  "lr",
                                  "lr-",
                                  "make-vocab-",
                                  "manual-gc",
                                  "manual-gc-",
                                  "max-position-",
                                  "memory-snapshot-",
                                  "merge-file",
                                  "mid-level-",
                                  "min-loss-",
                                  "min-lr",
                                  "mock-data",
                                  "moe-aux-",
                                  "moe-grouped-gemm",
                                  "moe-input-jitter-",
                                  "moe-per-layer-",
                                  "moe-permute-fusion",
                                  "moe-router-",
                                  "moe-z-loss-",
                                  "mscale",
                                  "mscale-",
                                  "mtp-loss-",
                                  "no-async-",
                                  "no-barrier-",
                                  "no-bias-",
                                  "no-check-",
                                  "no-create-",
                                  "no-data-sharding",
                                  "no-load-",
                                  "no-masked-",
                                  "no-mmap-",
                                  "no-one-logger",
                                  "no-persist-",
                                  "no-position-",
                                  "no-rope-",
                                  "no-save-",
                                  "non-persistent-",
                                  "norm-epsilon",
                                  "normalization",
                                  "null-tokenizer-",
                                  "num-dataset-builder-",
                                  "num-workers",
                                  "nvtx-ranges",
                                  "object-storage-",
                                  "one-logger-",
                                  "optimizer",
                                  "original-max-",
                                  "override-opt-",
                                  "per-split-",
                                  "perform-initialization",
                                  "position-embedding-",
                                  "pretrained-checkpoint",
                                  "profile",
                                  "profile-",
                                  "record-memory-",
                                  "replication",
                                  "replication-",
                                  "rerun-",
                                  "reset-attention-",
                                  "reset-position-",
                                  "rope-",
                                  "rotary-",
                                  "save",
                                  "save-",
                                  "seed",
                                  "sft",
                                  "sgd-",
                                  "split",
                                  "squared-relu",
                                  "start-weight-",
                                  "straggler-",
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
                                  "trust-remote-",
                                  "use-checkpoint-",
                                  "use-cpu-initialization",
                                  "use-dist-ckpt",
                                  "use-flash-attn",
                                  "use-legacy-",
                                  "use-mcore-",
                                  "use-pytorch-",
                                  "use-rope-",
                                  "use-rotary-",
                                  "valid-data-",
                                  "vocab-extra-",
                                  "vocab-file",
                                  "wandb-",
                                  "weight-decay",
                                  "weight-decay-"};

// Of torchrun and of Slurm.
constexpr std::array launcher = {
    "account",     "chdir",         "comment",     "constraint",  "container-",   "cpus-per-",
    "dependency",  "error",         "exclusive",   "export",      "job-name",     "kill-on-",
    "label",       "mail-",         "master-addr", "master-port", "max-restarts", "mem",
    "mpi",         "no-container-", "no-kill",     "no-requeue",  "node-rank",    "open-mode",
    "output",      "partition",     "qos",         "rdzv-",       "redirects",    "requeue",
    "reservation", "role",          "signal",      "standalone",  "tee",          "time",
    "unbuffered",  "wait"};

template <class Table>
bool is_one_of(const std::string& name, const Table& known) {
  return std::any_of(known.begin(), known.end(), [&](const std::string& each) {
    return each.back() == '-' ? name.rfind(each, 0) == 0 : name == each;
  });
}

// The number at the end of a value: of 8, gpu:8 and h100:8 it is 8.
std::optional<std::int64_t> gpus_in(const MegatronArguments& given, const char* argument) {
  const auto text = given.known_text(argument);
  if (!text) return std::nullopt;
  return parse_number<std::int64_t>(text->substr(text->rfind(':') + 1));
}

// Of torchrun before those of Slurm, which a shell may have filled in.
void take_gpus(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  const bool of_slurm = given.has("nodes") && !given.known_text("nnodes");
  std::optional<std::int64_t> each;
  for (const char* argument : {"nproc-per-node", "gpus-per-node", "gres", "ntasks-per-node"}) {
    const auto found = gpus_in(given, argument);
    if (!each) each = found;
  }
  const auto tasks = gpus_in(given, "ntasks");
  if (input.typed("gpus")) return;
  if (!each && given.has("nproc-per-node")) each = given.size("nproc-per-node");  // for its error
  if (each) {
    input.options["gpus"] =
        fmt::format("{}", given.size(of_slurm ? "nodes" : "nnodes").value_or(1) * *each);
  } else if (tasks) {
    input.options["gpus"] = fmt::format("{}", *tasks);
  }
}

// What options say of themselves.
void take_declared(MegatronInput& input) {
  for (const job::JobOption& option : job::job_options()) {
    for (const auto& [argument, value] : option.megatron) {
      if (!input.given.has(argument) || input.typed(option.name)) continue;
      input.options[option.name] = *value != '\0' ? value : *input.given.text(argument);
    }
  }
}

// An option by the text of an argument, `usual` where it is not there.
void take_choice(MegatronInput& input, const char* option, const char* argument, const char* usual,
                 const Options& known) {
  input.given.has(argument);
  if (input.typed(option)) return;
  const std::string text = input.given.text(argument).value_or(usual);
  const auto found = known.find(text);
  if (found == known.end()) {
    std::vector<std::string> names;
    for (const auto& each : known) names.push_back(each.first);
    input.given.fail(argument, fmt::format("'{}': known are {}", text, fmt::join(names, ", ")));
  }
  input.options[option] = found->second;
}

void take_layout(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  const bool has_experts = input.model ? input.model->moe.has_value() : given.has("num-experts");
  const auto tensor = input.whole("tensor-parallel", 1)
                          .value_or(given.size("tensor-model-parallel-size").value_or(1));
  // Megatron's default of an expert's slices is the tensor ranks.
  const auto slices = given.size("expert-tensor-parallel-size").value_or(tensor);
  input.options["expert-tensor-parallel"] = fmt::format("{}", has_experts ? slices : 1);
  if (!given.has("expert-model-parallel-size")) input.options["expert-parallel"] = "1";
  take_stages(input);
  given.has("delay-wgrad-compute");  // what --ep-overlap takes for granted
  if (given.has("cp-comm-type")) {
    take_choice(input, "context-method", "cp-comm-type", "p2p",
                {{"p2p", "ring"}, {"all_gather", "all-gather"}, {"a2a", "all-to-all"}});
  }
  if (!given.has("sequence-parallel") && tensor > 1 && has_experts) {
    throw UsageError(fmt::format(
        "{}: --sequence-parallel is missing: Megatron-Core trains MoE layers with tensor "
        "parallelism only with it",
        given.name()));
  }
}

// Megatron's default, arguments.py.
void take_batch(MegatronInput& input) {
  if (input.typed("global-batch") || input.options.contains("global-batch")) return;
  const auto gpus = input.whole("gpus", 0);
  const auto micro = input.whole("micro-batch", 1);
  std::int64_t ranks = 1;
  for (const char* option : {"tensor-parallel", "context-parallel", "pipeline-parallel"}) {
    const auto each = input.whole(option, 1);
    if (!each || *each < 1 || *each > (1 << 20)) return;
    ranks *= *each;
  }
  if (!gpus || !micro || *gpus < ranks || *micro < 1 || *micro > (1 << 20)) return;
  const std::string sequences = fmt::format("{}", *gpus / ranks * *micro);
  input.options["global-batch"] = sequences;
  note(
      fmt::format("note: {}: without --global-batch-size a step of Megatron-LM is one micro-batch "
                  "of each pipeline: --global-batch {}",
                  input.given.name(), sequences));
}

void take_format(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  if (input.typed("precision")) return;
  if (given.has("fp16")) given.fail("fp16", "steps in fp16 are not modelled; bf16 takes as long");
  if (given.has("fp4-format")) {
    input.options["precision"] = "nvfp4";
  } else if (given.has("fp8-format")) {
    take_choice(input, "precision", "fp8-recipe", "delayed",
                {{"delayed", "fp8-delayed"},
                 {"tensorwise", "fp8-current"},
                 {"blockwise", "fp8-block"},
                 {"mxfp8", "mxfp8"}});
  }
}

void take_precision(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  take_format(input);
  if (given.text("exp-avg-dtype").value_or("fp32") == "bf16" &&
      given.text("exp-avg-sq-dtype").value_or("fp32") == "bf16") {
    input.options["optimizer-moments"] = "bf16";
  }
  const bool low =
      given.has("grad-reduce-in-bf16") || given.text("main-grads-dtype").value_or("fp32") == "bf16";
  input.options["gradients"] = low ? "bf16" : "fp32";
  if (const auto type = given.text("main-params-dtype").value_or("fp32"); type != "fp32") {
    note(fmt::format("note: {}: --main-params-dtype {} is counted as fp32", given.name(), type));
  }
  for (const char* implied :
       {"accumulate-allreduce-grads-in-fp32", "use-precision-aware-optimizer", "fp16", "fp8-recipe",
        "fp4-recipe", "fp8-param-gather", "fp4-param-gather", "fp8-margin", "fp8-interval",
        "fp8-amax-history-len", "fp8-amax-compute-algo"}) {
    given.has(implied);
  }
}

void take_recompute(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  const bool of_experts = given.has("moe-layer-recompute");  // the old name of the module moe
  const bool selective = given.has("recompute-activations") || of_experts;
  const std::string granularity =
      given.text("recompute-granularity").value_or(selective ? "selective" : "none");
  std::vector<std::string> modules = given.texts("recompute-modules");
  const std::string method = given.text("recompute-method").value_or("");
  const std::int64_t layers = given.size("recompute-num-layers").value_or(1);
  if (granularity == "full") {
    input.options["recompute"] =
        method.empty() ? "full" : fmt::format("full:{}:{}", method, layers);
  } else if (granularity == "selective") {
    if (modules.empty()) modules.emplace_back("core_attn");
    if (of_experts) modules.emplace_back("moe");
    input.options["recompute"] = fmt::format("{}", fmt::join(modules, ","));
  } else if (granularity != "none") {
    given.fail("recompute-granularity",
               fmt::format("'{}': known are full, selective", granularity));
  }
}

void take_offload(MegatronInput& input) {
  const std::vector<std::string> modules = input.given.texts("offload-modules");
  if (input.given.has("fine-grained-activation-offloading")) {
    input.options["offload"] = fmt::format("{}", fmt::join(modules, ","));
  }
}

void note_assumed(const MegatronArguments& given) {
  std::vector<std::string> assumed;
  for (const char* argument : {"overlap-grad-reduce", "overlap-param-gather"}) {
    if (!given.has(argument)) assumed.push_back(fmt::format("--{}", argument));
  }
  const bool low = given.has("fp8-format") || given.has("fp4-format");
  if (!low && !given.has("bf16") && !given.has("mixed-precision")) assumed.emplace_back("--bf16");
  if (assumed.empty()) return;
  note(
      fmt::format("note: {}: priced as with {}, which it does not have: Megatron-LM's step is "
                  "longer without",
                  given.name(), fmt::join(assumed, ", ")));
}

void take_states(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  note_assumed(given);
  input.options["zero"] = given.has("use-distributed-optimizer") ? "1" : "0";
  given.has("data-parallel-sharding-strategy");
  const bool is_sharded = given.has("use-megatron-fsdp") || given.has("use-custom-fsdp");
  if (!is_sharded) return;
  take_choice(
      input, "zero", "data-parallel-sharding-strategy", "no_shard",
      {{"no_shard", "0"}, {"optim", "1"}, {"optim_grads", "2"}, {"optim_grads_params", "3"}});
}

// The k of the models, that of the script where none is typed.
std::vector<int> usual_choices(const MegatronInput& input) {
  std::vector<int> usual;
  const std::string models = input.line.get("model");
  for (const std::string_view name : split(models, ',')) {
    try {
      const model::Model model = model::Model::load(std::string(name));
      usual.push_back(model.moe ? model.moe->top_k : 0);
    } catch (const Error&) {  // of the model, said where it is resolved
    }
  }
  if (!models.empty()) return usual;
  return {static_cast<int>(input.given.size("moe-router-topk").value_or(2))};
}

std::vector<std::string> typed_values(const MegatronInput& input, const char* option,
                                      bool is_number) {
  if (!input.typed(option)) return {""};
  return study::expand(fmt::format("--{}", option), input.line.get(option), is_number);
}

// How many experts a token chooses, of each router typed that has a capacity, else of the models'.
std::set<int> choices_with_capacity(const MegatronInput& input) {
  std::set<int> choices;
  for (const int usual : usual_choices(input)) {
    for (const std::string& typed : typed_values(input, "top-k", true)) {
      const int top_k = parse_number<int>(typed).value_or(0);
      for (const std::string& router : typed_values(input, "router", false)) {
        try {
          const routing::RouterConfig config =
              routing::parse_router(router.empty() ? "topk" : router, top_k, usual);
          if (config.overflows()) choices.insert(config.top_k);
        } catch (const Error&) {  // of this point, said where it is resolved
        }
      }
    }
  }
  return choices;
}

// The priority of all points, which is one for k = 1 and another above.
std::string priority_by_weight(const MegatronInput& input) {
  const std::set<int> choices = choices_with_capacity(input);
  if (!choices.contains(1)) return "own-weight";
  if (choices.size() == 1) return "own-score";
  std::vector<std::string> lists;
  for (const char* option : {"model", "router", "top-k"}) {
    const std::string text = input.line.get(option);
    const bool is_range = option == std::string_view("top-k") && text.find(':') != text.npos;
    if (!is_range && text.find(',') == text.npos) continue;
    lists.push_back(fmt::format("--{} {}", option, text));
  }
  throw UsageError(fmt::format(
      "{}: with a capacity Megatron-LM drops by --priority own-score where a token chooses one "
      "expert, else by own-weight: type a --priority for all, or run them one by one",
      fmt::join(lists, ", ")));
}

// `probs` drops by a route's weight (megatron/core/transformer/moe/moe_utils.py): of a softmax over
// the k chosen, with --moe-router-pre-softmax, which k = 1 needs, of one over all experts; of other
// score functions, which take no notice of that argument, over the sum of the k, for k = 1 the
// score itself. `position` knows a token's place, not which of its choices an expert is.
void take_drops(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  const bool pads = given.has("moe-pad-expert-input-to-capacity");
  const std::string scores = given.text("moe-router-score-function").value_or("softmax");
  const bool is_share_of_all = given.has("moe-router-pre-softmax") && scores == "softmax";
  const std::string policy = given.text("moe-token-drop-policy").value_or("probs");
  if (policy != "probs" && policy != "position") {
    given.fail("moe-token-drop-policy", fmt::format("'{}': known are position, probs", policy));
  }
  if (!given.has("moe-expert-capacity-factor")) return;
  input.options["padding"] = pads ? "capacity" : "none";
  if (input.typed("priority")) return;
  input.options["priority"] = policy == "position" ? "token-order"
                              : is_share_of_all    ? "own-score"
                                                   : priority_by_weight(input);
}

bool draws_routing(const MegatronInput& input) {
  const bool draws = input.typed("routing-draws") && input.line.get("routing-draws") != "balanced";
  return input.given.has("moe-expert-capacity-factor") || input.typed("routing") || draws;
}

// What decides an expert, or a group of them, of the model's own router, where routing is drawn:
// sigmoids of logits, in the place of a softmax, matter to what an expert's capacity drops, and
// groups are kept by the sum of their k / KEPT best experts
// (megatron/core/transformer/moe/moe_utils.py, group_limited_topk), of logits where the softmax
// comes after the choice.
void take_scores(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  const std::string scores = given.text("moe-router-score-function").value_or("softmax");
  const bool is_softmax_after = scores == "softmax" && !given.has("moe-router-pre-softmax");
  const bool has_groups = given.size("moe-router-num-groups").value_or(1) > 1;
  const bool has_bias = given.has("moe-router-enable-expert-bias");
  if (input.typed("router") || input.typed("model") || !draws_routing(input)) return;
  // A router with a bias has no capacity, and topk is drawn in its place.
  const bool is_replaced = has_bias && given.has("moe-expert-capacity-factor");
  if (has_groups && !is_replaced) {
    input.options["group-score"] = is_softmax_after && !has_bias ? "topk-logits" : "topk";
  } else if (scores == "sigmoid" && given.has("moe-expert-capacity-factor")) {
    input.options["score-function"] = "sigmoid";
  }
}

void take_experts(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  const std::string type = given.text("moe-token-dispatcher-type").value_or("allgather");
  if (given.has("num-experts") && type == "allgather" &&
      given.size("expert-model-parallel-size").value_or(1) > 1) {
    note(fmt::format("note: {}: --moe-token-dispatcher-type allgather is priced as an all-to-all",
                     given.name()));
  }
  const std::string backend = given.text("moe-flex-dispatcher-backend").value_or("deepep");
  if (type == "flex") input.options["dispatcher"] = backend;
  for (const char* shape : {"moe-enable-deepep", "moe-deepep-num-sms", "moe-hybridep-num-sms",
                            "moe-shared-expert-overlap"}) {
    given.has(shape);
  }
  take_drops(input);
  take_scores(input);
}

void take_graphs(MegatronInput& input) {
  const MegatronArguments& given = input.given;
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
  input.options["cuda-graphs"] = layers ? "layers" : holds("attn") ? "parts" : "router";
}

std::shared_ptr<const model::Model> model_of(const CommandLine& line) {
  const std::string name = line.get("model");
  if (name.empty() || name.find(',') != std::string::npos) return nullptr;
  return std::make_shared<const model::Model>(model::Model::load(name));
}

void note_model(const MegatronArguments& given) {
  for (const std::string& text : {model::vocabulary_note(given), model::clamp_note(given)}) {
    if (!text.empty()) note(text);
  }
}

// The model's own errors, and how many of the arguments are left to --model.
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
  input.options["model"] = input.given.name();
  return 0;
}

void note_rest(const MegatronArguments& given, std::size_t taken, std::size_t of_model) {
  std::vector<std::string> unknown;
  std::size_t idle = 0;
  for (const std::string& name : given.not_asked()) {
    if (is_one_of(name, no_effect) || is_one_of(name, launcher)) {
      ++idle;
    } else {
      unknown.push_back("--" + name);
    }
  }
  const std::string model =
      of_model == 0 ? ""
                    : fmt::format("{} of the model left out, which is that of --model, ", of_model);
  for (const std::string& text : given.notes()) {
    note(fmt::format("note: {}: {}", given.name(), text));
  }
  note(fmt::format(
      "megatron: {}: {} options from it, {}{} arguments without effect on a step, {} "
      "not understood{}{}{}{}",
      given.name(), taken, model, idle, unknown.size(), unknown.empty() ? "" : ": ",
      fmt::join(unknown, " "),
      given.left_out().empty() ? "" : "; arguments left out: ", fmt::join(given.left_out(), ", ")));
}

// Arguments of an option that does not declare them, as far as a layout has them.
constexpr std::pair<const char*, const char*> of_layout[] = {
    {"expert-tensor-parallel", "expert-tensor-parallel-size"},
    {"virtual-pipeline", "num-layers-per-virtual-pipeline-stage"},
    {"pipeline-layout", "decoder-first-pipeline-num-layers"},
    {"pipeline-layout", "decoder-last-pipeline-num-layers"},
    {"pipeline-layout", "account-for-embedding-in-pipeline-split"},
    {"pipeline-layout", "account-for-loss-in-pipeline-split"},
    {"precision", "fp8-format"},
    {"precision", "fp4-format"},
    {"recompute", "recompute-granularity"},
    {"zero", "use-distributed-optimizer"},
    {"zero", "use-megatron-fsdp"},
    {"dispatcher", "moe-token-dispatcher-type"},
    {"cuda-graphs", "cuda-graph-impl"},
};

std::vector<std::string> layout_arguments(const MegatronArguments& given, const CommandLine& line) {
  std::vector<std::string> found;
  const auto look = [&](const std::string& option, const char* argument) {
    if (!line.has(option) && given.has(argument)) found.push_back(fmt::format("--{}", argument));
  };
  for (const job::JobOption& option : job::job_options()) {
    if (option.name == "sequence-length") continue;  // the model's
    for (const auto& argument : option.megatron) look(option.name, argument.name);
  }
  for (const auto& [option, argument] : of_layout) look(option, argument);
  return found;
}

// Of a model from a file that says more than a model.
void note_model_alone(const CommandLine& line) {
  const std::string models = line.get("model");
  for (const std::string_view part : split(models, ',')) {
    const std::string name(part);
    if (!MegatronArguments::is_path(name)) continue;
    std::vector<std::string> left;
    try {
      const MegatronArguments given = MegatronArguments::load(name);
      note_model(given);
      left = layout_arguments(given, line);
    } catch (const Error&) {  // of the model, said where it is resolved
      continue;
    }
    if (left.empty()) continue;
    constexpr std::size_t shown = 4;
    const std::string more =
        left.size() > shown ? fmt::format(" and {} more", left.size() - shown) : "";
    left.resize(std::min(left.size(), shown));
    note(
        fmt::format("note: --model {}: the model alone is taken from it, not {}{}: --megatron {} "
                    "takes these too",
                    name, fmt::join(left, ", "), more, name));
  }
}

}  // namespace

Flag megatron_input() {
  return {megatron_flag, "FILE", "none",
          "a launch script or YAML of Megatron-LM, whose arguments are taken as options, below "
          "those given here; what is not understood is listed"};
}

CommandLine with_megatron(const Command& command, CommandLine line) {
  if (!line.has(megatron_flag)) {
    note_model_alone(line);
    return line;
  }
  const MegatronArguments given = MegatronArguments::load(line.get(megatron_flag));
  MegatronInput input{given, line, model_of(line)};
  take_gpus(input);
  take_declared(input);
  take_layout(input);
  take_batch(input);
  take_precision(input);
  take_recompute(input);
  take_offload(input);
  take_states(input);
  take_experts(input);
  take_graphs(input);
  const std::size_t of_model = take_model(input);
  CommandLine full = line;
  std::size_t taken = 0;
  for (const auto& option : input.options) {
    const auto known = std::find_if(command.flags.begin(), command.flags.end(),
                                    [&](const Flag& flag) { return flag.name == option.first; });
    if (known == command.flags.end()) continue;
    if (!full.values.insert(option).second) continue;
    full.of_row.insert(option.first);
    ++taken;
  }
  note_rest(given, taken, of_model);
  return full;
}

}  // namespace moesim::tool
