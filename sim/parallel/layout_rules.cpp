#include "sim/parallel/layout_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sim/base/error.hpp"

namespace moesim::parallel {
namespace {

using Refusal = std::optional<std::string>;

constexpr std::int64_t most_chunks = 10'000;

Refusal expert_refusal(const model::Model& model, const LayoutRequest& request) {
  const ParallelLayout& layout = request.sizes;
  if (!model.moe) {
    if (layout.expert == 1 && layout.expert_tensor == 1 && !request.expert_overlap) return {};
    return fmt::format(
        "{} has no experts: --expert-parallel and --expert-tensor-parallel are 1, and nothing is "
        "overlapped with their exchange",
        model.name);
  }
  if (model.moe->experts % layout.expert != 0) {
    return fmt::format("--expert-parallel {} does not divide the {} experts of {}", layout.expert,
                       model.moe->experts, model.name);
  }
  if (model.moe->expert_ffn % layout.expert_tensor != 0) {
    return fmt::format("--expert-tensor-parallel {} does not divide the inner size {} of an expert",
                       layout.expert_tensor, model.moe->expert_ffn);
  }
  if (layout.tensor > 1 && !request.sequence_parallel) {
    return fmt::format("MoE layers with --tensor-parallel {} need --sequence-parallel on",
                       layout.tensor);
  }
  return std::nullopt;
}

// Ranks divide whole heads (megatron/core/transformer/transformer_config.py).
Refusal linear_attention_refusal(const model::Model& model, const LayoutRequest& request) {
  if (!model.linear) return std::nullopt;
  const std::int64_t tensor = request.sizes.tensor;
  const std::int64_t context = request.sizes.context;
  if (model.linear->key_heads % (tensor * context) == 0) return std::nullopt;
  return fmt::format("--tensor-parallel {}{} does not divide the {} key heads of linear attention",
                     tensor, context > 1 ? fmt::format(" x --context-parallel {}", context) : "",
                     model.linear->key_heads);
}

Refusal head_refusal(const model::Model& model, const LayoutRequest& request) {
  const std::int64_t tensor = request.sizes.tensor;
  const std::int64_t context = request.sizes.context;
  if (model.heads % tensor != 0) {
    return fmt::format("--tensor-parallel {} does not divide the {} attention heads", tensor,
                       model.heads);
  }
  // Latent attention has a key and a value of its own for each head.
  if (model.kv_heads % tensor != 0 && tensor % model.kv_heads != 0) {
    return fmt::format("--tensor-parallel {} and the {} key/value heads: neither divides the other",
                       tensor, model.kv_heads);
  }
  if (Refusal refusal = linear_attention_refusal(model, request)) return refusal;
  if (context == 1 || request.context_method != model::ContextMethod::all_to_all)
    return std::nullopt;
  const std::int64_t heads = model.heads / tensor;
  const std::int64_t kv_heads = std::max<std::int64_t>(1, model.kv_heads / tensor);
  if (heads % context == 0 && kv_heads % context == 0) return std::nullopt;
  return fmt::format(
      "--context-method all-to-all divides heads: --context-parallel {} does not divide the {} "
      "heads and {} key/value heads of a rank",
      context, heads, kv_heads);
}

Refusal sequence_refusal(const LayoutRequest& request) {
  const std::int64_t context = request.sizes.context;
  const std::int64_t tensor = request.sizes.tensor;
  if (context > 1 && request.sequence_length % (2 * context) != 0) {
    return fmt::format(
        "--sequence-length {} does not divide into 2 x --context-parallel = {} pieces, two per "
        "rank for a causal balance",
        request.sequence_length, 2 * context);
  }
  if (tensor > 1 && request.sequence_parallel &&
      (request.sequence_length / context) % tensor != 0) {
    return fmt::format(
        "--tensor-parallel {} does not divide the {} tokens that a rank has of a sequence, as "
        "sequence parallelism needs",
        tensor, request.sequence_length / context);
  }
  return std::nullopt;
}

Refusal batch_refusal(const LayoutRequest& request) {
  const std::int64_t at_once = request.sequences_at_once();
  if (request.micro_batch < 1 || request.global_batch < 0) return "a batch is below 1";
  if (request.global_batch % at_once != 0) {
    return fmt::format(
        "--global-batch {} is no multiple of --micro-batch {} x data parallel {} = {}",
        request.global_batch, request.micro_batch, request.sizes.data(), at_once);
  }
  if (request.global_batch / at_once > 1'000'000) {
    return fmt::format("--global-batch {} is {} micro-batches: more than 1,000,000",
                       request.global_batch, request.global_batch / at_once);
  }
  return std::nullopt;
}

Refusal stage_refusal(const model::Model& model, const LayoutRequest& request) {
  const ScheduleShape shape = request.shape();
  const int stages = shape.stages();
  const int ranks = request.sizes.pipeline;
  if (model.encoder_layers > 0 && ranks > 1) {
    return fmt::format("{} has an encoder: --pipeline-parallel divides decoders only", model.name);
  }
  if (!request.stages) {
    if (model.layers % stages == 0) return std::nullopt;
    if (model.layers < stages) {
      return fmt::format("{} layers are fewer than {} pipeline chunks", model.layers, stages);
    }
    return fmt::format(
        "{} layers do not divide evenly over {} pipeline chunks: say which layers each has with "
        "--pipeline-layout, such as '{}'",
        model.layers, stages, nearly_even_pipeline_layout(model.layers, stages).text());
  }
  const auto given = static_cast<int>(request.stages->chunks.size());
  try {
    check_pipeline_layout(*request.stages, model.layers, ranks);
  } catch (const UsageError& error) {
    return error.what();
  }
  if (request.stages->mtp() > model.mtp_depths) {
    return fmt::format(
        "--pipeline-layout has {} 'm', but {} has {} depths of multi-token prediction",
        request.stages->mtp(), model.name, model.mtp_depths);
  }
  if (given == stages) return std::nullopt;
  return fmt::format("--pipeline-layout has {} chunks, but --pipeline-parallel {}{} makes {}",
                     given, ranks,
                     shape.kind == ScheduleKind::dualpipe_v
                         ? " folded (dualpipe-v)"
                         : fmt::format(" x --virtual-pipeline {}", shape.virtual_stages),
                     stages);
}

Refusal overlap_refusal(const LayoutRequest& request) {
  if (!request.expert_overlap) return std::nullopt;
  if (request.sizes.expert == 1) {
    return "--ep-overlap hides the exchange of experts: it needs --expert-parallel above 1";
  }
  if (request.stages && request.stages->mtp() > 1) {
    return fmt::format("--ep-overlap allows one depth of multi-token prediction, not {}",
                       request.stages->mtp());
  }
  if (request.recomputes_experts) {
    return "--ep-overlap allows no recomputation of MoE layers, full or of the module moe";
  }
  return std::nullopt;
}

}  // namespace

std::int64_t LayoutRequest::sequences_at_once() const { return micro_batch * sizes.data(); }

int LayoutRequest::micro_batches() const {
  if (global_batch == 0) return 4 * sizes.pipeline;
  return static_cast<int>(global_batch / sequences_at_once());
}

std::int64_t LayoutRequest::sequences() const {
  return micro_batch * micro_batches() * sizes.data();
}

ScheduleShape LayoutRequest::shape() const {
  ScheduleShape shape;
  shape.kind = kind();
  shape.ranks = sizes.pipeline;
  shape.virtual_stages = sizes.virtual_pipeline;
  shape.micro_batches = micro_batches();
  shape.group = micro_batch_group;
  shape.expert_overlap = expert_overlap;
  return shape;
}

ScheduleKind LayoutRequest::kind() const {
  return schedule.value_or(sizes.virtual_pipeline > 1 ? ScheduleKind::interleaved
                                                      : ScheduleKind::one_f_one_b);
}

int widest_expert_parallel(const model::Model& model, const ParallelLayout& layout, int domain) {
  if (!model.moe) return 1;
  int widest = 1;
  for (int ranks = 2; ranks <= std::min(domain, model.moe->experts); ++ranks) {
    if (std::int64_t{ranks} * layout.expert_tensor > domain) break;
    const std::int64_t stage = std::int64_t{ranks} * layout.expert_tensor * layout.pipeline;
    if (model.moe->experts % ranks == 0 && layout.gpus % stage == 0) widest = ranks;
  }
  return widest;
}

Refusal ranks_refusal(const ParallelLayout& layout) {
  const std::array<int, 7> sizes{layout.gpus,         layout.tensor,           layout.context,
                                 layout.pipeline,     layout.virtual_pipeline, layout.expert,
                                 layout.expert_tensor};
  if (*std::min_element(sizes.begin(), sizes.end()) < 1) return "a size of a layout is below 1";
  if (layout.gpus % layout.attention_ranks() != 0) {
    return fmt::format(
        "--gpus {} is no multiple of --tensor-parallel {} x --context-parallel {} x "
        "--pipeline-parallel {} = {}",
        layout.gpus, layout.tensor, layout.context, layout.pipeline, layout.attention_ranks());
  }
  if (layout.gpus % layout.expert_ranks() != 0) {
    return fmt::format(
        "--gpus {} is no multiple of --expert-tensor-parallel {} x --expert-parallel {} x "
        "--pipeline-parallel {} = {}",
        layout.gpus, layout.expert_tensor, layout.expert, layout.pipeline, layout.expert_ranks());
  }
  return std::nullopt;
}

Refusal chunks_refusal(const ParallelLayout& layout) {
  const std::int64_t chunks = std::int64_t{layout.pipeline} * layout.virtual_pipeline;
  if (chunks <= most_chunks) return std::nullopt;
  return fmt::format("--pipeline-parallel {} x --virtual-pipeline {} are more than {} chunks",
                     layout.pipeline, layout.virtual_pipeline, most_chunks);
}

std::optional<std::string> layout_refusal(const model::Model& model, const LayoutRequest& request) {
  if (Refusal refusal = ranks_refusal(request.sizes)) return refusal;
  if (Refusal refusal = chunks_refusal(request.sizes)) return refusal;
  if (Refusal refusal = expert_refusal(model, request)) return refusal;
  if (Refusal refusal = head_refusal(model, request)) return refusal;
  if (Refusal refusal = sequence_refusal(request)) return refusal;
  if (Refusal refusal = batch_refusal(request)) return refusal;
  if (Refusal refusal = overlap_refusal(request)) return refusal;
  if (Refusal refusal = schedule_refusal(request.shape())) return refusal;
  return stage_refusal(model, request);
}

PipelineLayout stages_of(const model::Model& model, const LayoutRequest& request) {
  return request.stages ? *request.stages
                        : even_pipeline_layout(model.layers, request.shape().stages());
}

}  // namespace moesim::parallel
