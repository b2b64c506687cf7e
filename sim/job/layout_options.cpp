#include "sim/job/layout_options.hpp"

#include "sim/cluster/cluster.hpp"
#include "sim/job/documents.hpp"
#include "sim/model/megatron/megatron_model.hpp"

namespace moesim::job {
namespace {

using model::StateRules;
using parallel::LayoutRequest;
using parallel::ParallelLayout;
using training::TrainingJob;

constexpr EnumNames<bool, 2> switch_names{{{false, "off"}, {true, "on"}}};

constexpr EnumNames<int, 4> zero_names{{
    {0, "0", "every data-parallel rank has all states"},
    {1, "1", "they share the optimizer's states"},
    {2, "2", "and the gradients"},
    {3, "3", "and the weights, gathered layer by layer (FSDP)"},
}};

template <class Member>
auto in_sizes(Member ParallelLayout::*member) {
  return field(&TrainingJob::layout, &LayoutRequest::sizes, member);
}

template <class Member>
auto in_layout(Member LayoutRequest::*member) {
  return field(&TrainingJob::layout, member);
}

void set_schedule(const std::string& text, Resolution& at) {
  at.job.layout.schedule = value_in(parallel::schedule_names, text, "--pipeline-schedule");
}

void use_widest_expert_parallel(Resolution& at) {
  parallel::LayoutRequest& request = at.job.layout;
  const int domain =
      at.job.ranks_per_domain > 0 ? at.job.ranks_per_domain : at.job.cluster->gpus_per_domain;
  request.expert_domain = domain;
  request.sizes.expert = parallel::widest_expert_parallel(*at.job.model, request.sizes, domain);
}

// VP: so many that the chunks of a given pipeline layout lie on its ranks.
void use_virtual_stages_of_layout(Resolution& at) {
  parallel::LayoutRequest& request = at.job.layout;
  if (!request.stages) return;
  const auto chunks = static_cast<int>(request.stages->chunks.size());
  const int ranks = request.sizes.pipeline;
  const bool folded = request.schedule == parallel::ScheduleKind::dualpipe_v;
  if (!folded && chunks % ranks == 0) request.sizes.virtual_pipeline = chunks / ranks;
}

void use_usual_sequence(Resolution& at) {
  at.job.layout.sequence_length = model::usual_sequence_length(*at.job.model);
}

void declare_shares(JobOptionTable& table) {
  table.begin(Section::job);
  table.document("model", set_model)
      .by_default("llama2-7b-moe8")
      .in_layout()
      .shown_as([](const TrainingJob& job) { return Cell(job.typed.model); })
      .help(
          "a shipped model, a document of your own, a Hugging Face config.json, or a script or "
          "YAML of Megatron-LM");
  table.whole("gpus", 1, cluster::most_gpus, in_sizes(&ParallelLayout::gpus))
      .by_default("32")
      .in_layout()
      .help("GPUs of the job");
  table.begin(Section::layout);
  table.whole("tensor-parallel", 1, cluster::most_gpus, in_sizes(&ParallelLayout::tensor))
      .by_default("1")
      .in_layout()
      .searched()
      .megatron("tensor-model-parallel-size")
      .help("TP: ranks that share a layer");
  table
      .choice("sequence-parallel", switch_names, in_layout(&LayoutRequest::sequence_parallel),
              "on|off")
      .by_default("on")
      .in_layout()
      .rare()
      .idle([](const TrainingJob& job) -> std::string {
        return job.layout.sizes.tensor > 1 || job.layout.sequence_parallel
                   ? ""
                   : "--sequence-parallel has no effect: --tensor-parallel 1";
      })
      .help("whether they share the tokens between its products too; models with experts need it");
  table.whole("context-parallel", 1, cluster::most_gpus, in_sizes(&ParallelLayout::context))
      .by_default("1")
      .in_layout()
      .searched()
      .megatron("context-parallel-size")
      .help("CP: ranks that share a sequence");
  table
      .choice("context-method", model::context_method_names,
              in_layout(&LayoutRequest::context_method))
      .by_default("ring")
      .in_layout()
      .idle([](const TrainingJob& job) -> std::string {
        return job.layout.sizes.context > 1
                   ? ""
                   : "--context-method has no effect: --context-parallel 1 exchanges no keys";
      })
      .help("how they exchange keys and values:");
}

void declare_pipeline(JobOptionTable& table) {
  table.whole("pipeline-parallel", 1, cluster::most_gpus, in_sizes(&ParallelLayout::pipeline))
      .by_default("1")
      .in_layout()
      .searched()
      .megatron("pipeline-model-parallel-size")
      .help("PP: ranks that a micro-batch passes");
  table
      .whole("virtual-pipeline", 1, cluster::most_gpus, in_sizes(&ParallelLayout::virtual_pipeline))
      .by_default("1; chunks of --pipeline-layout over PP", use_virtual_stages_of_layout)
      .in_layout()
      .searched()
      .megatron("num-virtual-stages-per-pipeline-rank")
      .help("VP: chunks of layers per pipeline rank");
  table
      .text("pipeline-layout", "TEXT",
            [](const std::string& text, Resolution& at) {
              at.job.layout.stages = parallel::parse_pipeline_layout(text);
            })
      .by_default("layers divided evenly", nullptr)
      .in_layout()
      .not_searched()
      .megatron("pipeline-model-parallel-layout")
      .shown_as([](const TrainingJob& job) {
        return Cell(parallel::stages_of(*job.model, job.layout).text());
      })
      .help(
          "what each chunk has, as Et*4|(t*4|)*14tmL: E embedding, t layer, m multi-token "
          "prediction, L loss; | or / ends a chunk, *n repeats a letter or bracket");
}

void declare_expert_sizes(JobOptionTable& table) {
  table.whole("expert-parallel", 1, cluster::most_gpus, in_sizes(&ParallelLayout::expert))
      .by_default("the most that divides, in a domain", use_widest_expert_parallel)
      .in_layout()
      .searched()
      .megatron("expert-model-parallel-size")
      .help("EP: ranks that share the experts");
  table
      .whole("expert-tensor-parallel", 1, cluster::most_gpus,
             in_sizes(&ParallelLayout::expert_tensor))
      .by_default("1")
      .in_layout()
      .searched()
      .help("ETP: ranks that share an expert");
}

}  // namespace

void declare_layout(JobOptionTable& table) {
  declare_shares(table);
  declare_pipeline(table);
  declare_expert_sizes(table);
}

void declare_batch(JobOptionTable& table) {
  table.begin(Section::job);
  table
      .whole("sequence-length", 1, parallel::most_sequences,
             in_layout(&LayoutRequest::sequence_length))
      .by_default("the model's", use_usual_sequence)
      .in_layout()
      .megatron("seq-length")
      .help("tokens of a sequence");
  table.whole("micro-batch", 1, parallel::most_micro_batch, in_layout(&LayoutRequest::micro_batch))
      .by_default("1")
      .in_layout()
      .searched()
      .megatron("micro-batch-size")
      .help("sequences that pass the pipeline together");
  table.whole("global-batch", 1, parallel::most_sequences, in_layout(&LayoutRequest::global_batch))
      .by_default("4 of --micro-batch per pipeline rank", nullptr)
      .in_layout()
      .megatron("global-batch-size")
      .shown_as(
          [](const TrainingJob& job) { return Cell(static_cast<double>(job.layout.sequences())); })
      .help("sequences of a step");
}

void declare_schedule(JobOptionTable& table) {
  table.begin(Section::layout);
  table.text("pipeline-schedule", "NAME", set_schedule)
      .by_default("1f1b; interleaved with virtual stages", nullptr)
      .in_layout()
      .shown_as([](const TrainingJob& job) {
        return Cell(std::string(name_in(parallel::schedule_names, job.layout.shape().kind)));
      })
      .help("in which order chunks are computed:");
  table.forms(parallel::schedule_names);
  table
      .whole("micro-batch-group", 1, parallel::most_micro_batch,
             in_layout(&LayoutRequest::micro_batch_group))
      .by_default("the pipeline ranks", nullptr)
      .in_layout()
      .not_searched()
      .megatron("microbatch-group-size-per-virtual-pipeline-stage")
      .shown_as([](const TrainingJob& job) {
        const bool has_groups = job.layout.kind() == parallel::ScheduleKind::interleaved;
        return has_groups ? Cell(std::int64_t{job.layout.shape().group_size()}) : Cell();
      })
      .idle([](const TrainingJob& job) -> std::string {
        return job.layout.kind() == parallel::ScheduleKind::interleaved
                   ? ""
                   : "--micro-batch-group has no effect: only the interleaved schedule has groups";
      })
      .help("interleaved: micro-batches that pass a chunk in a row");
  table.choice("ep-overlap", switch_names, in_layout(&LayoutRequest::expert_overlap), "off|on")
      .by_default("off")
      .in_layout()
      .searched()
      .megatron("overlap-moe-expert-parallel-comm", "on")
      .help(
          "1f1b, interleaved: a forward and a backward chunk in pairs, the exchanges of experts of "
          "one under the computation of the other");
}

void declare_sharing(JobOptionTable& table) {
  table.begin(Section::layout);
  table.choice("zero", zero_names, in_states(&StateRules::zero), "N")
      .of_numbers()
      .by_default("1")
      .in_layout()
      .searched()
      .shown_as([](const TrainingJob& job) { return Cell(std::int64_t{job.states.zero}); })
      .help("what data-parallel ranks share:");
  table
      .whole("optimizer-instances", 1, cluster::most_gpus,
             in_states(&StateRules::optimizer_instances))
      .by_default("1")
      .in_layout()
      .megatron("num-distributed-optimizer-instances")
      .help(
          "groups of data-parallel ranks that each share all of it (HSDP with --zero 3); gradients "
          "are reduced across them once per step");
}

}  // namespace moesim::job
