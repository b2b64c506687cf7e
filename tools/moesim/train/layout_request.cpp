#include "tools/moesim/train/layout_request.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/text.hpp"

namespace moesim::tool {
namespace {

using parallel::LayoutRequest;

constexpr const char* default_model = "llama2-7b-moe8";
constexpr std::int64_t most_gpus = 1 << 20;

std::int64_t whole(const CommandLine& line, const char* flag, std::int64_t fallback,
                   std::int64_t most = most_gpus) {
  if (!line.has(flag)) return fallback;
  return parse_whole(fmt::format("--{}", flag), line.get(flag), 1, most);
}

int size_of(const CommandLine& line, const char* flag, int fallback = 1) {
  return static_cast<int>(whole(line, flag, fallback));
}

bool switched_on(const CommandLine& line, const char* flag) {
  static constexpr EnumNames<bool, 2> names{{{false, "off"}, {true, "on"}}};
  return value_in(names, line.get(flag, "off"), fmt::format("--{}", flag));
}

// As many as divide the experts and the ranks of a stage, inside a domain.
int default_expert_parallel(const model::Model& model, const parallel::ParallelLayout& layout,
                            int ranks_per_domain) {
  if (!model.moe) return 1;
  int best = 1;
  for (int ranks = 1; ranks <= std::min(ranks_per_domain, model.moe->experts); ++ranks) {
    const std::int64_t stage = std::int64_t{ranks} * layout.expert_tensor * layout.pipeline;
    if (ranks > 1 && ranks * layout.expert_tensor > ranks_per_domain) break;
    if (model.moe->experts % ranks == 0 && layout.gpus % stage == 0) best = ranks;
  }
  return best;
}

// A layout of the text, and how many virtual stages that makes where none were asked for.
void take_pipeline_layout(const CommandLine& line, LayoutRequest& request) {
  if (!line.has("pipeline-layout")) return;
  request.stages = parallel::parse_pipeline_layout(line.get("pipeline-layout"));
  const auto chunks = static_cast<int>(request.stages->chunks.size());
  const int ranks = request.layout.pipeline;
  const bool folded = request.schedule == parallel::ScheduleKind::dualpipe_v;
  if (line.has("virtual-pipeline") || folded || chunks % ranks != 0) return;
  request.layout.virtual_pipeline = chunks / ranks;
}

constexpr EnumNames<int, 2> moment_names{
    {{4, "fp32", "4 bytes each"}, {2, "bf16", "2 bytes each, as DeepSeek-V3"}}};

}  // namespace

model::Model requested_model(const CommandLine& line) {
  return model::Model::load(line.get("model", default_model));
}

std::int64_t requested_whole(const CommandLine& line, const char* flag, std::int64_t fallback) {
  return whole(line, flag, fallback);
}

model::Precision requested_precision(const CommandLine& line) {
  return model::parse_precision(line.get("precision", "bf16"), "--precision");
}

bool copies_transposed(const profile::Device& device) {
  return device.name.find("H100") != std::string::npos ||
         device.name.find("H200") != std::string::npos;
}

model::Recompute requested_recompute(const CommandLine& line) {
  return model::parse_recompute(line.get("recompute", "none"), "--recompute");
}

model::Offload requested_offload(const CommandLine& line) {
  const model::Offload offload = model::parse_offload(line.get("offload", "none"), "--offload");
  model::check_offload(offload, requested_recompute(line));
  return offload;
}

int requested_moment_bytes(const CommandLine& line) {
  return value_in(moment_names, line.get("optimizer-moments", "fp32"), "--optimizer-moments");
}

double requested_expert_load(const CommandLine& line, double fallback) {
  if (!line.has("expert-load")) return fallback;
  const std::string text = line.get("expert-load");
  const double load = parse_number<double>(text).value_or(0);
  if (load >= 1 && load <= 1000) return load;
  throw UsageError(
      fmt::format("--expert-load: '{}' is no number from 1 (balanced) to 1000, such as 1.1", text));
}

LayoutRequest requested_layout(const CommandLine& line, const model::Model& model,
                               int ranks_per_domain) {
  LayoutRequest request;
  parallel::ParallelLayout& layout = request.layout;
  layout.gpus = size_of(line, "gpus", 32);
  layout.tensor = size_of(line, "tensor-parallel");
  layout.context = size_of(line, "context-parallel");
  layout.pipeline = size_of(line, "pipeline-parallel");
  layout.virtual_pipeline = size_of(line, "virtual-pipeline");
  layout.expert_tensor = size_of(line, "expert-tensor-parallel");
  layout.expert =
      size_of(line, "expert-parallel", default_expert_parallel(model, layout, ranks_per_domain));
  if (line.has("pipeline-schedule")) {
    request.schedule =
        value_in(parallel::schedule_names, line.get("pipeline-schedule"), "--pipeline-schedule");
  }
  request.context_method =
      value_in(model::context_method_names, line.get("context-method", "ring"), "--context-method");
  request.expert_overlap = switched_on(line, "ep-overlap");
  if (line.has("micro-batch-group")) {
    request.micro_batch_group = size_of(line, "micro-batch-group");
  }
  request.sequence_length = whole(line, "sequence-length", model.sequence_length, 1 << 30);
  request.micro_batch = whole(line, "micro-batch", 1);
  if (line.has("global-batch")) request.global_batch = whole(line, "global-batch", 1, 1 << 30);
  take_pipeline_layout(line, request);
  const model::Recompute recompute = requested_recompute(line);
  request.recomputes_experts =
      recompute.full != model::FullRecompute::none || recompute.has(model::RecomputeModule::moe);
  return request;
}

std::vector<Flag> layout_flags() {
  return {
      {"model", "NAME|FILE", default_model,
       "a shipped model, a document of your own, a Hugging Face config.json, or a script or YAML "
       "of "
       "Megatron-LM"},
      {"gpus", "N", "32", "GPUs of the job"},
      {"tensor-parallel", "N", "1", "TP: ranks that share a layer; with sequence parallelism"},
      {"context-parallel", "N", "1", "CP: ranks that share a sequence"},
      {"context-method", "NAME", "ring",
       "how they exchange keys and values:", name_choices(model::context_method_names)},
      {"pipeline-parallel", "N", "1", "PP: ranks that a micro-batch passes"},
      {"virtual-pipeline", "N", "1; chunks of --pipeline-layout over PP",
       "VP: chunks of layers per pipeline rank"},
      {"pipeline-layout", "TEXT", "layers divided evenly",
       "what each chunk has, as Et*4|(t*4|)*14tmL: E embedding, t layer, m multi-token prediction, "
       "L loss; | or / ends a chunk, *n repeats a letter or bracket"},
      {"expert-parallel", "N", "the most that divides, in a domain",
       "EP: ranks that share the experts"},
      {"expert-tensor-parallel", "N", "1", "ETP: ranks that share an expert"},
      {"sequence-length", "N", "the model's", "tokens of a sequence"},
      {"micro-batch", "N", "1", "sequences that pass the pipeline together"},
      {"global-batch", "N", "4 of --micro-batch per pipeline rank", "sequences of a step"},
      {"pipeline-schedule", "NAME", "1f1b; interleaved with virtual stages",
       "in which order chunks are computed:", name_choices(parallel::schedule_names)},
      {"micro-batch-group", "N", "the pipeline ranks",
       "interleaved: micro-batches that pass a chunk in a row"},
      {"ep-overlap", "off|on", "off",
       "1f1b, interleaved: a forward and a backward chunk in pairs, the exchanges of experts of "
       "one "
       "under the computation of the other"},
      {"precision", "NAME", "bf16", "format of GEMMs:", name_choices(model::precision_names)},
      {"recompute", "LIST", "none", "full, full:uniform:N, full:block:N, or a list of modules:",
       name_choices(model::recompute_names)},
      {"offload", "LIST", "none",
       "modules whose inputs wait in the host's memory for the backward pass:",
       name_choices(model::offload_names)},
      {"optimizer-moments", "NAME", "fp32", "Adam's two moments:", name_choices(moment_names)}};
}

}  // namespace moesim::tool
