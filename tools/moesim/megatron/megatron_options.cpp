#include "tools/moesim/megatron/megatron_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/job/job_options.hpp"
#include "sim/model/megatron/megatron_arguments.hpp"
#include "sim/parallel/layout_rules.hpp"
#include "tools/moesim/base/notes_off.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/megatron/megatron_bridge_script.hpp"
#include "tools/moesim/megatron/megatron_effects.hpp"
#include "tools/moesim/megatron/megatron_environment.hpp"
#include "tools/moesim/megatron/megatron_gpus.hpp"
#include "tools/moesim/megatron/megatron_idle_arguments.hpp"
#include "tools/moesim/megatron/megatron_input.hpp"
#include "tools/moesim/megatron/megatron_model_option.hpp"
#include "tools/moesim/megatron/megatron_routing.hpp"
#include "tools/moesim/megatron/megatron_stages.hpp"
#include "tools/moesim/megatron/megatron_typed.hpp"

namespace moesim::tool {
namespace {

using model::MegatronArguments;

constexpr const char* megatron_flag = "megatron";

// What options say of themselves.
void take_declared(MegatronInput& input) {
  for (const job::JobOption& option : job::job_options()) {
    for (const auto& [argument, value] : option.megatron) {
      if (!input.given.has(argument) || input.typed(option.name)) continue;
      const auto text = *value != '\0' ? value : input.given.text(argument);
      if (text) input.options[option.name] = *text;
    }
  }
}

// What divides or drops otherwise than any option here.
void refuse_other_layouts(const MegatronArguments& given) {
  if (given.known_text("ds-sequence-parallel-size").value_or("1") != "1") {
    given.fail("ds-sequence-parallel-size",
               "DeepSpeed's sequence parallelism is not known; the nearest is "
               "--context-parallel-size with --cp-comm-type a2a");
  }
  if (given.has("use-tokendrop")) {
    given.fail("use-tokendrop",
               "the recipe's capacity is not read: give it as "
               "model.moe_expert_capacity_factor");
  }
}

void take_sequence_parallelism(MegatronInput& input, std::int64_t tensor, bool has_experts) {
  const MegatronArguments& given = input.given;
  const bool is_given = given.has("sequence-parallel") || input.typed("sequence-parallel");
  if (is_given || tensor == 1) return;
  input.options["sequence-parallel"] = has_experts ? "on" : "off";
  if (!has_experts) return;
  if (!input.typed("tensor-parallel")) {
    throw UsageError(fmt::format(
        "{}: --sequence-parallel is missing: Megatron-Core trains MoE layers with tensor "
        "parallelism only with it",
        given.name()));
  }
  note(fmt::format(
      "note: {}: with --tensor-parallel {} it is priced as with --sequence-parallel, which "
      "it does not have: Megatron-Core trains MoE layers with tensor parallelism only with it",
      given.name(), tensor));
}

// Megatron-LM takes one for all layers, or one for each; its help writes allgather.
void take_context_method(MegatronInput& input) {
  constexpr const char* argument = "cp-comm-type";
  if (!input.given.has(argument) || input.typed("context-method")) return;
  const std::vector<std::string> types = input.given.texts(argument);
  const bool is_one = std::all_of(types.begin(), types.end(),
                                  [&](const std::string& type) { return type == types.front(); });
  if (!is_one) {
    input.given.fail(argument,
                     fmt::format("'{}': one for each layer is not modelled: give --context-method, "
                                 "which is that of all",
                                 fmt::join(types, " ")));
  }
  if (!types.empty() && types.front() == "a2a+p2p") {
    input.given.fail(argument,
                     "'a2a+p2p': known are a2a, all_gather, p2p; the nearest are --context-method "
                     "all-to-all and ring, between which its step lies");
  }
  take_choice(input, "context-method", argument, "p2p",
              {{"p2p", "ring"},
               {"all_gather", "all-gather"},
               {"allgather", "all-gather"},
               {"a2a", "all-to-all"}});
}

void take_layout(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  const bool has_experts = input.model ? input.model->moe.has_value() : given.has("num-experts");
  const auto tensor = input.whole("tensor-parallel", 1).value_or(1);
  // Megatron's default of an expert's slices is the tensor ranks.
  const auto slices = given.size("expert-tensor-parallel-size").value_or(tensor);
  input.options["expert-tensor-parallel"] = fmt::format("{}", has_experts ? slices : 1);
  if (!given.has("expert-model-parallel-size")) input.options["expert-parallel"] = "1";
  refuse_other_layouts(given);
  take_stages(input);
  given.has("delay-wgrad-compute");  // what --ep-overlap takes for granted
  take_context_method(input);
  take_sequence_parallelism(input, tensor, has_experts);
}

// Megatron's default, arguments.py.
void take_batch(MegatronInput& input) {
  if (input.typed("global-batch") || input.options.contains("global-batch")) return;
  const auto gpus = input.whole("gpus", 0);
  const auto micro = input.whole("micro-batch", 1);
  std::int64_t ranks = 1;
  for (const char* option : {"tensor-parallel", "context-parallel", "pipeline-parallel"}) {
    const auto each = input.whole(option, 1);
    if (!each || *each < 1 || *each > cluster::most_gpus) return;
    ranks *= *each;
  }
  if (!gpus || !micro || *gpus < ranks || *micro < 1 || *micro > parallel::most_micro_batch) return;
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
  if (given.has("fp16")) {
    note(fmt::format("note: {}: --fp16 is priced as --bf16, which takes as long", given.name()));
  }
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

// Takes moments of 4 bytes, or of 2 where both are of 2 or fewer.
void take_moments(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  const std::string first = given.text("exp-avg-dtype").value_or("fp32");
  const std::string second = given.text("exp-avg-sq-dtype").value_or("fp32");
  const bool is_small = first != "fp32" && second != "fp32";
  if (is_small) input.options["optimizer-moments"] = "bf16";
  if (first == second && (first == "fp32" || first == "bf16" || first == "fp16")) return;
  if (input.typed("optimizer-moments")) return;
  note(
      fmt::format("note: {}: --exp-avg-dtype {} with --exp-avg-sq-dtype {} is counted as {} for "
                  "both",
                  given.name(), first, second, is_small ? "bf16" : "fp32"));
}

bool shards_by_fsdp2(const MegatronInput& input) {
  return input.given.has("use-torch-fsdp2") && !input.typed("zero");
}

// Where weights are gathered in bf16 though the file asks for FP8.
void note_bf16_gather(MegatronInput& input) {
  if (input.typed("gather-precision")) return;
  const auto format = input.options.find("precision");
  const std::string precision =
      format == input.options.end() ? input.line.get("precision") : format->second;
  std::string why;
  if (precision == model::name_of(model::Precision::fp8_block)) {
    why =
        "changes nothing with scales per block: weights are priced as gathered in bf16 and cast "
        "on each rank, as in the recipes of Megatron-Bridge";
  } else if (shards_by_fsdp2(input)) {
    input.options["gather-precision"] = "bf16";
    why = "changes nothing with --use-torch-fsdp2, for which Megatron-LM gathers in bf16";
  } else {
    return;
  }
  note(fmt::format("note: {}: --fp8-param-gather {}", input.given.name(), why));
}

void take_precision(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  take_format(input);
  const bool gathers_fp8 = given.has("fp8-param-gather");
  const bool gathers_fp4 = given.has("fp4-param-gather");
  if (gathers_fp8) note_bf16_gather(input);
  const auto format = input.options.find("precision");
  const bool is_low = format != input.options.end() && format->second != "bf16";
  if ((is_low || input.typed("precision")) && !gathers_fp8 && !gathers_fp4) {
    input.options["gather-precision"] = "bf16";  // Megatron-LM's default
  }
  take_moments(input);
  const std::string main_gradients = given.text("main-grads-dtype").value_or("fp32");
  const bool low = given.has("grad-reduce-in-bf16") || main_gradients == "bf16";
  input.options["gradients"] = low ? "bf16" : "fp32";
  if (const auto type = given.text("main-params-dtype").value_or("fp32"); type != "fp32") {
    note(fmt::format("note: {}: --main-params-dtype {} is counted as fp32", given.name(), type));
  }
  for (const char* implied : {"accumulate-allreduce-grads-in-fp32", "use-precision-aware-optimizer",
                              "fp16", "fp8-recipe", "fp4-recipe", "fp8-margin", "fp8-interval",
                              "fp8-amax-history-len", "fp8-amax-compute-algo"}) {
    given.has(implied);
  }
}

// A list of modules of an option; Megatron-LM takes a module that is there twice as one.
std::string listed(const std::vector<std::string>& modules) {
  std::vector<std::string> once;
  for (const std::string& module : modules) {
    if (std::find(once.begin(), once.end(), module) == once.end()) once.push_back(module);
  }
  return fmt::format("{}", fmt::join(once, ","));
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
    input.options["recompute"] = listed(modules);
  } else if (granularity != "none") {
    given.fail("recompute-granularity",
               fmt::format("'{}': known are full, selective", granularity));
  }
}

void take_offload(MegatronInput& input) {
  const std::vector<std::string> modules = input.given.texts("offload-modules");
  if (input.given.has("fine-grained-activation-offloading")) {
    input.options["offload"] = listed(modules);
  }
}

void note_assumed(const MegatronInput& input) {
  const MegatronArguments& given = input.given;
  std::vector<std::string> assumed;
  for (const char* argument : {"overlap-grad-reduce", "overlap-param-gather"}) {
    if (!given.has(argument)) assumed.push_back(fmt::format("--{}", argument));
  }
  const bool has_experts = given.has("num-experts") && !given.drops_as_deepspeed();
  for (const char* argument : {"moe-grouped-gemm", "moe-permute-fusion"}) {
    if (!given.has(argument) && has_experts) assumed.push_back(fmt::format("--{}", argument));
  }
  if (given.has("overlap-moe-expert-parallel-comm") && !given.has("delay-wgrad-compute")) {
    assumed.emplace_back("--delay-wgrad-compute");
  }
  const bool low = given.has("fp8-format") || given.has("fp4-format");
  const bool has_format = given.has("bf16") || given.has("fp16") || input.typed("precision");
  if (!low && !has_format) assumed.emplace_back("--bf16");
  if (assumed.empty()) return;
  note(
      fmt::format("note: {}: priced as with {}, which it does not have: Megatron-LM's step is "
                  "longer without",
                  given.name(), fmt::join(assumed, ", ")));
}

// As Megatron-LM does, arguments.py; by what of its rules a step depends on.
void refuse_beside_fsdp2(const MegatronInput& input) {
  std::string with;
  const auto size = [&](const char* option) { return input.whole(option, 1).value_or(1); };
  if (const auto stages = size("pipeline-parallel"); stages > 1) {
    with = fmt::format("pipeline parallelism, here {}", stages);
  } else if (const auto experts = size("expert-parallel"); experts > 1) {
    with = fmt::format("expert parallelism, here {}", experts);
  } else if (input.given.has("use-distributed-optimizer")) {
    with = "--use-distributed-optimizer";
  } else if (input.given.has("fp16")) {
    with = "--fp16";
  }
  if (with.empty()) return;
  input.given.fail("use-torch-fsdp2", fmt::format("Megatron-LM refuses it with {}: --zero 3 prices "
                                                  "such a step as if it could be",
                                                  with));
}

void take_states(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  note_assumed(input);
  input.options["zero"] = given.has("use-distributed-optimizer") ? "1" : "0";
  const bool is_in_another_file = given.has("deepspeed") && !given.has("zero-stage");
  if (is_in_another_file && !input.typed("zero")) {
    given.fail("deepspeed",
               "the stage of ZeRO is in a file that is not read: add --zero-stage N, or give "
               "--zero");
  }
  if (given.has("zero-stage")) {
    take_choice(input, "zero", "zero-stage", "0", {{"0", "0"}, {"1", "1"}, {"2", "2"}, {"3", "3"}});
  }
  given.has("data-parallel-sharding-strategy");
  if (shards_by_fsdp2(input)) {
    refuse_beside_fsdp2(input);
    input.options["zero"] = "3";
    note(fmt::format("note: {}: --use-torch-fsdp2 is priced as Megatron-FSDP's --zero 3",
                     given.name()));
  }
  const bool is_sharded = given.has("use-megatron-fsdp") || given.has("use-custom-fsdp");
  if (!is_sharded) return;
  take_choice(
      input, "zero", "data-parallel-sharding-strategy", "no_shard",
      {{"no_shard", "0"}, {"optim", "1"}, {"optim_grads", "2"}, {"optim_grads_params", "3"}});
}

void take_dispatcher(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  const std::optional<std::string> asked = given.text("moe-token-dispatcher-type");
  const std::string type = asked.value_or("allgather");
  if (asked == "allgather") {
    input.options["dispatcher"] = type;
  } else if (!input.typed("dispatcher") && given.has("num-experts") && type == "allgather" &&
             !given.drops_as_deepspeed() &&
             given.size("expert-model-parallel-size").value_or(1) > 1) {
    note(
        fmt::format("note: {}: --moe-token-dispatcher-type is not given, whose default is "
                    "allgather: priced as an all-to-all; --dispatcher allgather prices it as it is",
                    given.name()));
  }
  const std::string backend = given.text("moe-flex-dispatcher-backend").value_or("deepep");
  if (type == "flex") input.options["dispatcher"] = backend;
  given.has("moe-enable-deepep");
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

void note_rest(const MegatronArguments& given, std::size_t taken, std::size_t of_model) {
  std::vector<std::string> unknown;
  std::size_t idle = 0;
  for (const std::string& name : given.not_asked()) {
    if (is_idle_argument(name)) {
      ++idle;
    } else {
      unknown.push_back(name.front() == '-' ? name : "--" + name);
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

// All that the file has but its model and its software, in the order in which one asks for another.
constexpr void (*steps_of_taking[])(MegatronInput&) = {
    take_gpus,    take_declared, take_layout,     take_batch,   take_precision, take_recompute,
    take_offload, take_states,   take_dispatcher, take_routing, take_graphs};

// One error for all values that are needed and that the script does not set.
void refuse_unknown(const MegatronInput& input) {
  if (!input.given.has_unknown()) return;
  MegatronArguments tried = input.given;
  tried.collect_unknown();
  const NotesOff silent;
  MegatronInput trial{tried, input.line, input.model};
  const auto try_to = [&](const auto& take) {
    try {
      take();
    } catch (const Error&) {  // said below, or once all values are known
    }
  };
  for (const auto step : steps_of_taking) try_to([&] { step(trial); });
  try_to([&] { take_model(trial); });
  const std::string refusal = tried.refusal_of_unknown();
  if (!refusal.empty()) throw UsageError(refusal);
}

}  // namespace

Flag megatron_input() {
  return {
      megatron_flag, "FILE", "none",
      "a launch script or YAML of Megatron-LM or Megatron-Bridge, or its call ('TP=2 run.sh big'), "
      "whose arguments are taken as options, below those given here; what is not understood is "
      "listed, what a step is priced "
      "without, and values that depend on what the script does not set"};
}

CommandLine with_megatron(const Command& command, CommandLine line) {
  if (!line.has(megatron_flag)) return line;
  MegatronArguments given = MegatronArguments::load(line.get(megatron_flag));
  check_is_of_training(given, line);
  spare_typed(given, line);
  MegatronInput input{given, line, typed_model(line)};
  refuse_unknown(input);
  for (const auto step : steps_of_taking) step(input);
  check_effects(given);
  take_bridge(input, std::any_of(command.flags.begin(), command.flags.end(),
                                 [](const Flag& flag) { return flag.name == "software"; }));
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
  note_environment(input);
  note_rest(given, taken, of_model);
  return full;
}

std::map<std::string, std::string> megatron_capacity(const CommandLine& line) {
  CommandLine with_capacity = line;
  with_capacity.values["capacity-factor"] = "1";
  MegatronArguments given = MegatronArguments::load(line.get(megatron_flag));
  spare_typed(given, line);
  const NotesOff silent;
  MegatronInput input{given, with_capacity, nullptr};
  take_routing(input);
  for (const auto& [option, value] : line.values) input.options.erase(option);
  return input.options;
}

}  // namespace moesim::tool
