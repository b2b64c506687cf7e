#include "sim/training/step/step_end.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/units.hpp"
#include "sim/model/memory/data_parallel.hpp"
#include "sim/training/job/rank_memory.hpp"
#include "sim/training/step/hidden_time.hpp"

namespace moesim::training {
namespace {

using parallel::GroupKind;
using profile::Collective;
using profile::MemoryKernel;

constexpr double bucket_parameters = 40e6;  // megatron/core, distributed_data_parallel.py
constexpr double bucket_parameters_per_rank = 1e6;
double largest_bucket(double ranks) {
  return std::max(bucket_parameters, bucket_parameters_per_rank * ranks);
}

}  // namespace

Picoseconds last_pass(const parallel::RankRun& rank) {
  return rank.spans.empty() ? Picoseconds(0) : rank.spans.back().end;
}

PartTimes joint_end(const parallel::ScheduleRun& run, const std::vector<RankEnd>& ends) {
  const auto behind_norm = [](const RankEnd& end) {
    return sum(end.parts) - end.parts[at(TrainingPart::gradients)];
  };
  const auto longest =
      std::max_element(ends.begin(), ends.end(), [&](const RankEnd& one, const RankEnd& other) {
        return behind_norm(one) < behind_norm(other);
      });
  PartTimes joint = longest->parts;
  joint[at(TrainingPart::gradients)] = 0;
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    const double reduced_us =
        last_pass(run.ranks[rank]).us() + ends[rank].parts[at(TrainingPart::gradients)];
    joint[at(TrainingPart::gradients)] =
        std::max(joint[at(TrainingPart::gradients)], reduced_us - run.makespan.us());
  }
  return joint;
}

StepEnds::StepEnds(const TrainingJob& job, const Pipelines& pipelines, const PipelineRun& slowest)
    : job_(job),
      pipelines_(pipelines),
      slowest_(slowest),
      exchanges_(pipelines.prices().exchanges()),
      contents_(chunk_contents(job)) {}

// The exchange of `bytes` in buckets, which hold so many of the `parameters`.
BucketExchange StepEnds::buckets_of(const Wanted& wanted, GroupKind group, double parameters,
                                    double bytes) {
  const int ranks = job_.layout.sizes.group_size(group);
  const int copies = job_.shards().stage_copies;
  const int all = wanted.replicas == Replicas::instance ? ranks * copies : ranks;
  const bool is_alone = wanted.replicas == Replicas::shard_of_copies ? copies < 2 : all < 2;
  BucketExchange found = {
      .part = wanted.part, .kind = wanted.kind, .group = group, .replicas = wanted.replicas};
  if (parameters <= 0 || is_alone) return found;
  found.buckets = static_cast<int>(std::ceil(parameters / largest_bucket(all)));
  const double each = bytes / found.buckets;
  const auto [known, is_new] = known_.try_emplace({wanted.kind, group, wanted.replicas, each}, 0.0);
  if (is_new) known->second = exchanges_.replicas_us(wanted.kind, group, wanted.replicas, each);
  found.each_us = known->second;
  return found;
}

StepEnds::Queue StepEnds::queue_of(const Wanted& wanted, const Chunks& chunks, RankEnd& end) {
  const model::StateRules& states = job_.states;
  const model::ShardSizes shards = job_.shards();
  // The part of the whole weights, or of a shard where replicas have one each.
  const auto part_of = [&](int replicas) {
    const double sharing = model::sharing_ranks(replicas, states);
    switch (wanted.replicas) {
      case Replicas::shard_of_copies:
        return 1 / sharing;
      case Replicas::shard_of_instances:
        return 1 / (sharing * model::owners(shards, states));
      default:
        return 1.0;
    }
  };
  Queue queue;
  queue.chunks_us.resize(chunks.size());
  for (std::size_t chunk = chunks.size(); chunk-- > 0;) {  // as backward passes end
    const model::StageParameters& held = chunks[chunk];
    const model::BufferBytes bytes = wanted.part == TrainingPart::parameters
                                         ? model::gathered_bytes(held, states)
                                         : model::reduced_bytes(held, states);
    for (const auto& [group, parameters, whole] :
         {std::tuple{GroupKind::data_context, held.dense, bytes.dense},
          std::tuple{GroupKind::expert_data, held.expert, bytes.expert}}) {
      const double part = part_of(job_.layout.sizes.group_size(group));
      BucketExchange each = buckets_of(wanted, group, parameters, whole * part);
      if (each.buckets == 0) continue;
      each.place = static_cast<int>(chunk);
      queue.chunks_us[chunk] += each.buckets * each.each_us;
      queue.last_us = std::max(queue.last_us, each.each_us);
      queue.crosses_domains =
          queue.crosses_domains || exchanges_.replicas_cross_domains(group, wanted.replicas);
      end.exchanges.push_back(each);
    }
  }
  return queue;
}

// Gradients of copies of experts go to the expert, its weights come back: assumed to be exposed.
// Each replica has its share of what they share.
double StepEnds::copies_us(const model::StageParameters& held, RankEnd& end) const {
  if (job_.redundant_experts == 0) return 0;
  const model::StateRules& states = job_.states;
  const int replicas =
      model::sharing_ranks(job_.layout.sizes.group_size(GroupKind::expert_data), states);
  const double bytes =
      model::reduced_bytes(held, states).expert / (states.zero >= 2 ? replicas : 1) +
      model::gathered_bytes(held, states).expert / (states.zero >= 3 ? replicas : 1);
  const double copied = static_cast<double>(job_.redundant_experts) / job_.held_experts();
  const double time_us =
      exchanges_.exchange_us(Collective::all_to_all, GroupKind::expert, bytes * copied);
  // Named for what it does: an all-to-all of that group would be taken for rows of tokens.
  end.exchanges.push_back({.kind = Collective::reduce_scatter,
                           .group = GroupKind::expert_data,
                           .buckets = 1,
                           .each_us = time_us});
  return time_us;
}

// Once per step. ZeRO 2 and 3 have reduced inside a copy of the stage, in every micro-batch.
std::vector<StepEnds::Queue> StepEnds::reductions(const Chunks& held, const Chunks& with_copies,
                                                  RankEnd& end) {
  const model::StateRules& states = job_.states;
  std::vector<Queue> queues;
  if (states.zero < 2) {
    const Collective kind = states.zero == 0 ? Collective::all_reduce : Collective::reduce_scatter;
    queues.push_back(queue_of({TrainingPart::gradients, kind, Replicas::instance}, held, end));
  } else if (job_.shards().stage_copies > 1) {
    // Copies of experts too, where replicas share gradients.
    queues.push_back(
        queue_of({TrainingPart::gradients, Collective::reduce_scatter, Replicas::shard_of_copies},
                 with_copies, end));
  }
  if (states.optimizer_instances > 1) {
    queues.push_back(
        queue_of({TrainingPart::gradients, Collective::all_reduce, Replicas::shard_of_instances},
                 held, end));
  }
  return queues;
}

// The share of the rank's last backward passes under which ZeRO 2 and 3 exchange on these links.
double StepEnds::taken_by_passes(int rank, bool crosses_domains) const {
  const model::StateRules& states = job_.states;
  const auto replicas = Replicas::instance_of_copy;
  if (states.zero < 2 ||
      exchanges_.replicas_cross_domains(GroupKind::data_context, replicas) != crosses_domains) {
    return 0;
  }
  const model::StageParameters held = rank_parameters(job_, contents_, rank, job_.held_experts());
  double exchanged_us = 0;
  const auto add = [&](Collective kind, const model::BufferBytes& bytes) {
    exchanged_us += exchanges_.replicas_us(kind, GroupKind::data_context, replicas, bytes.dense) +
                    exchanges_.replicas_us(kind, GroupKind::expert_data, replicas, bytes.expert);
  };
  add(Collective::reduce_scatter, model::reduced_bytes(held, states));
  if (states.zero == 3) add(Collective::all_gather, model::gathered_bytes(held, states));
  double backward_us = 0;
  const parallel::ScheduleShape& shape = pipelines_.shape();
  for (const int stage : shape.stages_of(rank)) {
    const Passes& last = pipelines_.passes(slowest_, {shape.micro_batches - 1, stage});
    backward_us += sum(last.input_gradient) + sum(last.weight_gradient);
  }
  return backward_us > 0 ? exchanged_us / backward_us : 0;
}

// What passes do not hide. Those on NICs and those in a domain do not wait for each other.
double StepEnds::gradients_us(int rank, const std::vector<Queue>& queues) const {
  double exposed_us = 0;
  for (const bool crosses_domains : {false, true}) {
    std::vector<double> chunks_us(pipelines_.shape().stages_of(rank).size(), 0.0);
    double last_us = 0;
    for (const Queue& queue : queues) {
      if (queue.crosses_domains != crosses_domains) continue;
      last_us += queue.last_us;
      for (std::size_t chunk = 0; chunk < chunks_us.size(); ++chunk) {
        chunks_us[chunk] += queue.chunks_us[chunk];
      }
    }
    const double all_us = std::accumulate(chunks_us.begin(), chunks_us.end(), 0.0);
    if (all_us <= 0) continue;
    exposed_us +=
        job_.overlaps_gradients
            ? std::max(last_us,
                       HiddenTime(pipelines_, slowest_, rank, crosses_domains)
                           .left_of_gradients_us(chunks_us, taken_by_passes(rank, crosses_domains)))
            : all_us;
  }
  return exposed_us;
}

// What the optimizer stepped: all weights, or with ZeRO 3, whose passes gather a copy's, its shard.
double StepEnds::gathered_us(int rank, const Chunks& held, RankEnd& end) {
  const int zero = job_.states.zero;
  if (zero == 0 || (zero == 3 && job_.shards().stage_copies == 1)) return 0;
  const Queue queue = queue_of({TrainingPart::parameters, Collective::all_gather,
                                zero == 3 ? Replicas::shard_of_copies : Replicas::instance},
                               held, end);
  const double all_us = std::accumulate(queue.chunks_us.begin(), queue.chunks_us.end(), 0.0);
  if (!job_.overlaps_parameters || all_us <= 0) return all_us;
  return std::max(queue.last_us, HiddenTime(pipelines_, slowest_, rank, queue.crosses_domains)
                                     .left_of_weights_us(queue.chunks_us));
}

RankEnd StepEnds::of(int rank) {
  RankEnd end;
  PartTimes& parts = end.parts;
  // Copies of experts leave their gradients to the expert, which alone is stepped.
  const Chunks chunks = chunk_parameters(job_, contents_, rank, job_.experts());
  const Chunks chunks_with_copies = chunk_parameters(job_, contents_, rank, job_.held_experts());
  const model::StageParameters held = rank_parameters(job_, contents_, rank, job_.experts());
  const model::StageParameters with_copies =
      rank_parameters(job_, contents_, rank, job_.held_experts());
  parts[at(TrainingPart::gradients)] +=
      gradients_us(rank, reductions(chunks, chunks_with_copies, end));
  parts[at(TrainingPart::gradients)] += copies_us(with_copies, end);
  parts[at(TrainingPart::parameters)] += gathered_us(rank, chunks, end);
  const model::StateRules& states = job_.states;
  const model::ShardSizes shards = job_.shards();
  // Gradients of copies are only cleared.
  const double cleared = model::clear_gradient_bytes(with_copies, shards, states) -
                         model::clear_gradient_bytes(held, shards, states);
  const double bytes =
      model::optimizer_bytes(held, shards, states) + cleared / fp32_bytes * states.gradient_bytes;
  parts[at(TrainingPart::optimizer)] +=
      pipelines_.prices().memory_us(bytes, MemoryKernel::streaming);
  parts[at(TrainingPart::host)] += job_.host.step_us;
  return end;
}

}  // namespace moesim::training
