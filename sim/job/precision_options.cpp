#include "sim/job/precision_options.hpp"

#include <algorithm>

#include "sim/job/documents.hpp"

namespace moesim::job {
namespace {

using model::StateRules;
using training::TrainingJob;

constexpr EnumNames<int, 2> moment_names{
    {{4, "fp32", "4 bytes each"}, {2, "bf16", "2 bytes each, as DeepSeek-V3"}}};

constexpr EnumNames<int, 2> gradient_names{{
    {4, "fp32", "4 bytes each, added up over micro-batches and reduced"},
    {2, "bf16", "2 bytes each"},
}};

constexpr EnumNames<bool, 2> gather_names{{
    {false, "bf16", "bf16, a copy of which every rank keeps beside that of the products"},
    {true, "low", "the format of the products, where it can be cut into shards: not fp8-block"},
}};

constexpr EnumNames<bool, 2> attention_names{{
    {false, "bf16", "core attention in bf16, whatever --precision is"},
    {true, "fp8", "core attention in FP8 too"},
}};

constexpr EnumNames<bool, 2> head_names{{
    {false, "bf16", "the output head in bf16, whatever --precision is"},
    {true, "low", "in the format of the other products"},
}};

constexpr EnumNames<bool, 2> dispatch_names{{
    {false, "bf16", "rows travel in bf16, whatever --precision is"},
    {true, "low", "to experts in the format of the products, home in bf16 (DeepSeek-V3)"},
}};

std::string idle_gather_precision(const TrainingJob& job) {
  StateRules low = job.states;
  low.low_precision_gather = true;
  if (low.gathers_low()) return "";
  return fmt::format("--gather-precision {} has no effect: {} gathers bf16",
                     job.states.low_precision_gather ? "low" : "bf16",
                     model::name_of(job.states.precision));
}

void set_recompute(const std::string& text, Resolution& at) {
  at.job.recompute = model::parse_recompute(text, "--recompute");
  at.job.layout.recomputes_experts = at.job.recompute.recomputes_experts();
}

void check_offload(const TrainingJob& job) {
  const auto refusal = model::offload_refusal(job.offload, job.recompute);
  if (refusal) throw UsageError(*refusal);
}

// What takes part in a low precision needs one.
void check_low_precision(const TrainingJob& job, bool is_asked_for, const char* option,
                         const char* why, const char* example) {
  if (!is_asked_for || job.states.precision != model::Precision::bf16) return;
  throw UsageError(fmt::format("{} with --precision bf16: {}: give --precision, such as {}", option,
                               why, example));
}

void check_attention_precision(const TrainingJob& job) {
  check_low_precision(job, job.fp8_attention, "--attention-precision fp8",
                      "frameworks compute attention in FP8 only beside FP8 products",
                      "fp8-current");
}

void check_head_precision(const TrainingJob& job) {
  check_low_precision(job, job.low_precision_head, "--head-precision low",
                      "the head takes the format of the other products", "fp8-current");
}

bool has_module(const model::Model& model, model::RecomputeModule module) {
  using Module = model::RecomputeModule;
  switch (module) {
    case Module::mla_up_proj:
      return model.latent.has_value();
    case Module::mlp:
      return model.dense_layers() > 0;
    case Module::moe:
    case Module::moe_act:
      return model.moe.has_value();
    case Module::shared_experts:
      return model.moe && model.moe->shared_ffn > 0;
    case Module::core_attn:
      return model.linear_layers() < model.layers;
    case Module::layernorm:
      break;
  }
  return true;
}

// Where some layers have linear attention in its place, of which nothing is computed again.
std::string idle_core_attention(const TrainingJob& job) {
  const model::Model& model = *job.model;
  const bool some = job.recompute.has(model::RecomputeModule::core_attn) && model.linear;
  if (!some) return "";
  return fmt::format(
      "core_attn in --recompute has no effect on {} of {} layers: they have linear attention",
      model.linear_layers(), model.layers);
}

// Decoder layers of the largest chunk.
int longest_chunk(const TrainingJob& job) {
  int longest = 0;
  for (const parallel::PipelineChunk& chunk : parallel::stages_of(*job.model, job.layout).chunks) {
    longest = std::max(longest, chunk.layers);
  }
  return longest;
}

// What else of --recompute changes nothing: a module inside another, and layers that no chunk has.
std::string idle_part_of_recompute(const TrainingJob& job) {
  using Module = model::RecomputeModule;
  const model::Recompute& recompute = job.recompute;
  if (recompute.has(Module::moe) && recompute.has(Module::moe_act)) {
    return "moe_act in --recompute has no effect: moe computes it again too";
  }
  // A layout that cannot be is refused later.
  if (recompute.full == model::FullRecompute::none || recompute.layers == 1 ||
      parallel::layout_refusal(*job.model, job.layout)) {
    return idle_core_attention(job);
  }
  const int longest = longest_chunk(job);
  if (recompute.layers <= longest) return "";
  model::Recompute same = recompute;
  same.layers = longest;
  return fmt::format("--recompute {} is the same as {}: no pipeline chunk has more layers",
                     model::name_of(recompute), model::name_of(same));
}

// The modules of --recompute that the model does not have.
std::string idle_recompute(const TrainingJob& job) {
  model::Recompute absent;
  for (const auto& known : model::recompute_names) {
    if (job.recompute.has(known.value) && !has_module(*job.model, known.value)) {
      absent.add(known.value);
    }
  }
  if (absent.modules == 0) return idle_part_of_recompute(job);
  const std::string names = model::name_of(absent);
  const bool one = names.find(',') == std::string::npos;
  return fmt::format("{} in --recompute {} no effect: no layer of {} has {}", names,
                     one ? "has" : "have", job.typed.model, one ? "it" : "them");
}

std::string idle_offload(const TrainingJob& job) {
  if (job.offload.modules == 0) return "";
  const model::ActivationRules rules = job.activation_rules(1);
  double bytes = 0;
  for (const auto kind : {model::LayerKind::dense, model::LayerKind::moe}) {
    const bool there =
        kind == model::LayerKind::moe ? job.model->moe.has_value() : job.model->dense_layers() > 0;
    if (there) bytes += model::offloaded_bytes(*job.model, kind, job.shards(), rules);
  }
  if (bytes > 0) return "";
  if (job.recompute.full == model::FullRecompute::none && job.recompute.modules == 0) {
    return fmt::format("--offload has no effect: no layer of {} has these modules",
                       job.typed.model);
  }
  return "--offload has no effect: of these modules nothing is kept (--recompute)";
}

void check_dispatch_precision(const TrainingJob& job) {
  check_low_precision(job, job.low_precision_dispatch, "--dispatch-precision low",
                      "rows travel in the format of the products", "fp8-block");
}

std::string idle_dispatch_precision(const TrainingJob& job) {
  if (!job.model->moe) {
    return fmt::format("--dispatch-precision has no effect: {} has no experts", job.typed.model);
  }
  if (job.dispatched_element_bytes() < model::element_bytes(model::Precision::bf16)) return "";
  return "--dispatch-precision has no effect: with --expert-parallel 1 no rows travel";
}

}  // namespace

void declare_precision(JobOptionTable& table) {
  table.begin(Section::precision);
  table
      .text(
          "precision", "NAME", model::parse_precision,
          [](model::Precision precision) { return model::name_of(precision); },
          in_states(&StateRules::precision))
      .by_default("bf16")
      .in_layout()
      .searched()
      .checked(check_products)
      .help("format of GEMMs:");
  table.forms(model::precision_names);
  table.text("recompute", "LIST", set_recompute)
      .by_default("none")
      .in_layout()
      .searched()
      .shown_as([](const TrainingJob& job) { return Cell(model::name_of(job.recompute)); })
      .idle(idle_recompute)
      .help("full, full:uniform:N, full:block:N, or a list of modules:");
  table.forms(model::recompute_names);
  table
      .text(
          "offload", "LIST", model::parse_offload,
          [](const model::Offload& offload) { return model::name_of(offload); },
          field(&TrainingJob::offload))
      .by_default("none")
      .in_layout()
      .rare()
      .checked(check_offload)
      .idle(idle_offload)
      .help("modules whose inputs wait in the host's memory for the backward pass:");
  table.forms(model::offload_names);
  table.choice("optimizer-moments", moment_names, in_states(&StateRules::moment_bytes))
      .by_default("fp32")
      .built_in()
      .in_layout()
      .help("Adam's two moments:");
}

void declare_other_precisions(JobOptionTable& table) {
  table.begin(Section::precision);
  table.choice("gradients", gradient_names, in_states(&StateRules::gradient_bytes))
      .by_default("fp32")
      .built_in()
      .in_layout()
      .help("precision of gradients:");
  table.choice("gather-precision", gather_names, in_states(&StateRules::low_precision_gather))
      .by_default("low")
      .in_layout()
      .rare()
      .megatron("fp8-param-gather", "low")
      .idle(idle_gather_precision)
      .help("in which data-parallel ranks gather weights after the optimizer:");
  table.choice("attention-precision", attention_names, field(&TrainingJob::fp8_attention))
      .by_default("bf16")
      .built_in()
      .megatron("fp8-dot-product-attention", "fp8")
      .checked(check_attention_precision)
      .help("precision of core attention:");
  table.choice("head-precision", head_names, field(&TrainingJob::low_precision_head))
      .by_default("bf16")
      .built_in()
      .megatron("fp8-output-proj", "low")
      .checked(check_head_precision)
      .help("precision of the output head:");
  table.choice("dispatch-precision", dispatch_names, field(&TrainingJob::low_precision_dispatch))
      .by_default("bf16")
      .rare()
      .checked(check_dispatch_precision)
      .idle(idle_dispatch_precision)
      .help("precision of rows on their way to experts:");
}

}  // namespace moesim::job
