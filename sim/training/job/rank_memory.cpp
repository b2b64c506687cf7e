#include "sim/training/job/rank_memory.hpp"

#include <algorithm>

#include "sim/parallel/schedule_run.hpp"

namespace moesim::training {

std::vector<model::StageContent> chunk_contents(const model::Model& model,
                                                const parallel::PipelineLayout& layout) {
  std::vector<model::StageContent> contents;
  for (const parallel::PipelineChunk& chunk : layout.chunks) {
    model::StageContent content = model::layers_of(model, chunk.first_layer, chunk.layers);
    content.mtp_depths = chunk.mtp;
    content.embedding = chunk.embedding;
    content.head = chunk.loss;
    content.mtp_losses = chunk.loss ? layout.mtp() : 0;
    contents.push_back(content);
  }
  return contents;
}

std::vector<model::StageContent> chunk_contents(const TrainingJob& job) {
  return chunk_contents(*job.model, parallel::stages_of(*job.model, job.layout));
}

std::vector<model::StageParameters> chunk_parameters(
    const TrainingJob& job, const std::vector<model::StageContent>& contents, int rank,
    int experts) {
  std::vector<model::StageParameters> found;
  const std::vector<int> stages = job.layout.shape().stages_of(rank);
  const bool has_embedding = std::any_of(stages.begin(), stages.end(), [&](int stage) {
    return contents[static_cast<std::size_t>(stage)].embedding;
  });
  for (const int stage : stages) {
    model::StageContent content = contents[static_cast<std::size_t>(stage)];
    content.embedding_beside = has_embedding && !content.embedding;
    found.push_back(model::stage_parameters(*job.model, content, job.shards(), experts));
  }
  return found;
}

model::StageParameters rank_parameters(const TrainingJob& job,
                                       const std::vector<model::StageContent>& contents, int rank,
                                       int experts) {
  model::StageParameters found;
  for (const model::StageParameters& each : chunk_parameters(job, contents, rank, experts)) {
    found.dense += each.dense;
    found.expert += each.expert;
    found.gemm += each.gemm;
  }
  return found;
}

namespace {

// A rank has room for every token of all ranks that exchange rows, whatever is sent.
double reserved_buffers(const TrainingJob& job) {
  if (!job.dispatcher || !job.model->moe) return 0;
  const int ranks = job.exchanging_ranks();
  const int in_domain = std::min(ranks, job.placed_ranks());
  const double experts = in_domain * job.held_experts() / job.layout.sizes.expert;
  const auto hidden = static_cast<double>(job.model->hidden);
  return job.dispatcher->reserved.bytes(hidden, experts) * ranks * job.tokens_per_rank();
}

// All tokens of the ranks that gather them, and their outputs, in bf16.
double gathered_buffers(const TrainingJob& job) {
  constexpr double there_and_back = 2 + 2;
  if (!job.gathers_tokens || !job.model->moe || job.exchanging_ranks() < 2) return 0;
  return there_and_back * job.exchanging_ranks() * job.tokens_per_rank() *
         static_cast<double>(job.model->hidden);
}

}  // namespace

model::StageMemoryQuery memory_query(const TrainingJob& job, double load) {
  model::StageMemoryQuery query;
  query.model = job.model.get();
  query.shards = job.shards();
  query.experts = job.held_experts();
  query.copies = job.redundant_experts;
  query.tokens = job.tokens();
  query.context = job.layout.context_method;
  query.reserved_buffers = reserved_buffers(job);
  query.gathered_buffers = gathered_buffers(job);
  query.states = job.states;
  query.activations = job.activation_rules(load);
  return query;
}

std::vector<model::StageMemory> rank_memory(const TrainingJob& job,
                                            const parallel::Schedule& schedule,
                                            const std::vector<model::StageContent>& contents,
                                            const HeldLoads& loads) {
  model::StageMemoryQuery query = memory_query(job, loads.of_layer);
  std::vector<parallel::PassWeight> bytes;
  const auto of_pass = [&](const model::StageContent& content, double waiting) {
    query.chunks = {{content, 1, waiting}};
    return static_cast<double>(model::stage_memory(query).activations.count);
  };
  for (const model::StageContent& content : contents) {
    bytes.push_back({of_pass(content, 0), of_pass(content, 1), {}});
    // DualPipe holds PP + 1 of its passes, as DeepSeek counts them.
    if (schedule.shape.expert_overlap) bytes.back().layers = layer_shares(query, content);
  }
  std::vector<model::StageMemory> memory;
  for (int rank = 0; rank < schedule.shape.ranks; ++rank) {
    const std::vector<parallel::HeldPasses> held = parallel::held_at_peak(schedule, rank, bytes);
    query.activations.load = loads.of_ranks[static_cast<std::size_t>(rank)];
    query.chunks.clear();
    for (const int chunk : schedule.shape.stages_of(rank)) {
      const auto at = static_cast<std::size_t>(chunk);
      query.chunks.push_back({contents[at], held[at].all + held[at].part,
                              static_cast<double>(held[at].waiting),
                              contents[at].head ? parallel::losses_held(schedule, rank) : 1});
    }
    memory.push_back(model::stage_memory(query));
  }
  return memory;
}

}  // namespace moesim::training
