#include "sim/training/step/step_end.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/profile/hidden_share.hpp"
#include "sim/training/job/rank_memory.hpp"

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
    return sum(end.parts) - end.parts[at(Part::gradients)];
  };
  const auto longest =
      std::max_element(ends.begin(), ends.end(), [&](const RankEnd& one, const RankEnd& other) {
        return behind_norm(one) < behind_norm(other);
      });
  PartTimes joint = longest->parts;
  joint[at(Part::gradients)] = 0;
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    const double reduced_us =
        last_pass(run.ranks[rank]).us() + ends[rank].parts[at(Part::gradients)];
    joint[at(Part::gradients)] =
        std::max(joint[at(Part::gradients)], reduced_us - run.makespan.us());
  }
  return joint;
}

StepEnds::StepEnds(const TrainingJob& job, const Pipelines& pipelines, const PipelineRun& slowest)
    : job_(job),
      pipelines_(pipelines),
      slowest_(slowest),
      exchanges_(pipelines.prices().exchanges()),
      contents_(chunk_contents(job)) {}

// Of `bytes` in buckets, which hold so many of the `parameters`.
BucketExchange StepEnds::buckets_of(const Wanted& wanted, GroupKind group, double parameters,
                                    double bytes) const {
  const int replicas = job_.layout.layout.group_size(group);
  const int copies = wanted.among == Among::copy ? 1 : job_.shards().stage_copies;
  const BucketExchange none = {wanted.part, wanted.kind, group, 0, 0};
  if (parameters <= 0 || replicas * copies < 2) return none;
  if (wanted.among == Among::shards_of_copies) {
    const double buckets = std::ceil(parameters / largest_bucket(replicas));
    const double shard = bytes / model::sharing_ranks(replicas, job_.states);
    return {.part = wanted.part,
            .kind = wanted.kind,
            .group = group,
            .buckets = static_cast<int>(buckets),
            .each_us = exchanges_.between_copies_us(wanted.kind, group, shard / buckets),
            .is_between_copies = true};
  }
  const double buckets = std::ceil(parameters / largest_bucket(replicas * copies));
  const StageCopies all = copies == 1 ? StageCopies::one : StageCopies::all;
  return {wanted.part, wanted.kind, group, static_cast<int>(buckets),
          exchanges_.inside_instance_us(wanted.kind, group, bytes / buckets, all)};
}

// Beyond what passes hide of it; never the last bucket.
double StepEnds::exposed_us(const Wanted& wanted, double hidden_us, bool overlaps,
                            RankEnd& end) const {
  double last = 0;
  double all = 0;
  for (const BucketExchange& each :
       {buckets_of(wanted, GroupKind::data_context, wanted.parameters.dense, wanted.bytes.dense),
        buckets_of(wanted, GroupKind::expert_data, wanted.parameters.expert,
                   wanted.bytes.expert)}) {
    if (each.buckets == 0) continue;
    last = std::max(last, each.each_us);
    all += each.buckets * each.each_us;
    end.exchanges.push_back(each);
  }
  return overlaps ? std::max(last, all - hidden_us) : all;
}

// Gradients of copies of experts go to the expert, its weights come back: assumed to be exposed.
// Of what replicas share each has its share.
double StepEnds::copies_us(const model::StageParameters& held, RankEnd& end) const {
  if (job_.redundant_experts == 0) return 0;
  const model::StateRules& states = job_.states;
  const int replicas =
      model::sharing_ranks(job_.layout.layout.group_size(GroupKind::expert_data), states);
  const double bytes =
      model::reduced_bytes(held, states).expert / (states.zero >= 2 ? replicas : 1) +
      model::gathered_bytes(held, states).expert / (states.zero >= 3 ? replicas : 1);
  const double copied = static_cast<double>(job_.redundant_experts) / job_.held_experts();
  const double time_us =
      exchanges_.exchange_us(Collective::all_to_all, GroupKind::expert, bytes * copied);
  // Named for what it does: an all-to-all of that group would be taken for rows of tokens.
  end.exchanges.push_back(
      {Part::gradients, Collective::reduce_scatter, GroupKind::expert_data, 1, time_us});
  return time_us;
}

// The all-reduce of each share among the optimizer instances, under what the last backward pass
// still hides (`hidden_us`); the last bucket never.
double StepEnds::across_instances_us(const model::StageParameters& held, double hidden_us,
                                     RankEnd& end) const {
  const int instances = job_.states.optimizer_instances;
  if (instances < 2) return 0;
  double all = 0;
  double last = 0;
  for (const auto& [group, parameters] : {std::pair{GroupKind::data_context, held.dense},
                                          std::pair{GroupKind::expert_data, held.expert}}) {
    const int ranks = job_.layout.layout.group_size(group);
    if (ranks < 2) continue;
    const double bytes = job_.states.gradient_bytes * parameters * instances /
                         (ranks * model::owners(job_.shards(), job_.states));
    const double time_us = exchanges_.across_instances_us(Collective::all_reduce, group, bytes);
    const double buckets = std::ceil(parameters / largest_bucket(ranks));
    if (buckets == 0) continue;
    all += time_us;
    last = std::max(last, time_us / buckets);
    end.exchanges.push_back({Part::gradients, Collective::all_reduce, group,
                             static_cast<int>(buckets), time_us / buckets, true});
  }
  return job_.overlaps_gradients ? std::max(last, all - hidden_us) : all;
}

// What the optimizer stepped: all weights, or with ZeRO 3, whose passes gather a copy's, its shard.
double StepEnds::gathered_us(const model::StageParameters& held, double hidden_us,
                             RankEnd& end) const {
  const model::StateRules& states = job_.states;
  if (states.zero == 0 || (states.zero == 3 && job_.shards().stage_copies == 1)) return 0;
  const Among among = states.zero == 3 ? Among::shards_of_copies : Among::both_copies;
  const Wanted wanted = {Part::parameters, Collective::all_gather, among, held,
                         model::gathered_bytes(held, states)};
  return exposed_us(wanted, hidden_us, job_.overlaps_parameters, end);
}

RankEnd StepEnds::of(int rank) const {
  RankEnd end;
  PartTimes& parts = end.parts;
  // Copies of experts leave their gradients to the expert, which alone is stepped.
  const model::StageParameters held = rank_parameters(job_, contents_, rank, job_.experts());
  const model::StageParameters with_copies =
      rank_parameters(job_, contents_, rank, job_.held_experts());
  const parallel::ScheduleShape& shape = pipelines_.shape();
  double forward_us = 0;
  double backward_us = 0;
  for (const int stage : shape.stages_of(rank)) {
    // Of the first micro-batch and of the last.
    forward_us += sum(pipelines_.passes(slowest_, {0, stage}).forward);
    const Passes& last_passes = pipelines_.passes(slowest_, {shape.micro_batches - 1, stage});
    backward_us += sum(last_passes.input_gradient) + sum(last_passes.weight_gradient);
  }
  const model::StateRules& states = job_.states;
  const bool reduces_all = states.zero == 0;
  // Shared gradients are reduced in every micro-batch.
  const double reductions = states.zero >= 2 ? pipelines_.micro_batches_of_stage() : 1;
  // Copies' too where replicas share gradients.
  const model::StageParameters& reduced = states.zero >= 2 ? with_copies : held;
  Wanted gradients = {Part::gradients,
                      reduces_all ? Collective::all_reduce : Collective::reduce_scatter,
                      states.zero >= 2 ? Among::copy : Among::both_copies, reduced,
                      model::reduced_bytes(reduced, states)};
  if (states.zero < 3) {
    end.last_reduction_us =
        exposed_us(gradients, profile::hidden_share * backward_us, job_.overlaps_gradients, end);
  }
  const double earlier_us = (reductions - 1) * end.last_reduction_us;
  // With ZeRO 3 the exchanges under a pass lie inside an instance, on other links.
  const auto left_us = [&] {
    double hidden_us = profile::hidden_share * backward_us;
    for (const BucketExchange& each : end.exchanges) hidden_us -= each.buckets * each.each_us;
    return std::max(0.0, hidden_us);
  };
  if (states.zero >= 2 && job_.shards().stage_copies > 1) {
    gradients.among = Among::shards_of_copies;
    end.last_reduction_us += exposed_us(gradients, left_us(), job_.overlaps_gradients, end);
  }
  end.last_reduction_us += across_instances_us(held, left_us(), end);
  end.last_reduction_us += copies_us(with_copies, end);
  parts[at(Part::gradients)] += earlier_us + end.last_reduction_us;
  parts[at(Part::parameters)] += gathered_us(held, profile::hidden_share * forward_us, end);
  const model::ShardSizes shards = job_.shards();
  // Gradients of copies are only cleared.
  constexpr double fp32 = 4;
  const double cleared = model::clear_gradient_bytes(with_copies, shards, states) -
                         model::clear_gradient_bytes(held, shards, states);
  const double bytes =
      model::optimizer_bytes(held, shards, states) + cleared / fp32 * states.gradient_bytes;
  parts[at(Part::optimizer)] += pipelines_.prices().memory_us(bytes, MemoryKernel::streaming);
  parts[at(Part::host)] += job_.host.step_us;
  return end;
}

}  // namespace moesim::training
