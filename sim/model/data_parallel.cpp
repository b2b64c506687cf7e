#include "sim/model/data_parallel.hpp"

namespace moesim::model {
namespace {

constexpr double fp32 = 4;
constexpr double bf16 = 2;

// The part of a buffer that a rank sends in one pass over `ranks`.
double ring_share(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

double gradients_sent(double bytes, int replicas, const DataParallelRules& rules) {
  const int zero = rules.states.zero;
  if (bytes == 0) return 0;
  if (zero == 0) return 2 * bytes * ring_share(replicas);
  const int shards = sharing_ranks(replicas, rules.states);
  const int times = zero >= 2 ? rules.micro_batches : 1;
  const double across = 2 * bytes / shards * ring_share(rules.states.optimizer_instances);
  return times * bytes * ring_share(shards) + across;
}

double weights_sent(double bytes, int replicas, const DataParallelRules& rules) {
  const int zero = rules.states.zero;
  if (zero == 0 || bytes == 0) return 0;
  const int times = zero == 3 ? 2 * rules.micro_batches : 1;
  return times * bytes * ring_share(sharing_ranks(replicas, rules.states));
}

}  // namespace

DataParallelBytes gradient_bytes(const StageParameters& parameters, const ShardSizes& shards,
                                 const DataParallelRules& rules) {
  return {gradients_sent(rules.gradient_bytes * parameters.dense, shards.dense_replicas(), rules),
          gradients_sent(rules.gradient_bytes * parameters.expert, shards.expert_data, rules)};
}

DataParallelBytes weight_bytes(const StageParameters& parameters, const ShardSizes& shards,
                               const DataParallelRules& rules) {
  const double gathered =
      gathered_weight_bytes(rules.states.precision, rules.states.low_precision_gather);
  const double dense = gathered * parameters.gemm + bf16 * (parameters.dense - parameters.gemm);
  return {weights_sent(dense, shards.dense_replicas(), rules),
          weights_sent(gathered * parameters.expert, shards.expert_data, rules)};
}

double owned_parameters(const StageParameters& parameters, const ShardSizes& shards,
                        const StateRules& rules) {
  if (rules.zero == 0) return parameters.dense + parameters.expert;
  return parameters.dense / sharing_ranks(shards.dense_replicas(), rules) +
         parameters.expert / sharing_ranks(shards.expert_data, rules);
}

double adam_bytes(const StateRules& rules) {
  const double states = fp32 + 2 * rules.moment_bytes;
  return fp32 + 2 * states + bf16;
}

double optimizer_bytes(const StageParameters& parameters, const ShardSizes& shards,
                       const StateRules& rules) {
  constexpr double norm_and_scale = 3;
  const double cleared = clear_gradient_bytes(parameters, shards, rules) / fp32;
  return (adam_bytes(rules) + norm_and_scale * rules.gradient_bytes) *
             owned_parameters(parameters, shards, rules) +
         cleared * rules.gradient_bytes;
}

double clear_gradient_bytes(const StageParameters& parameters, const ShardSizes& shards,
                            const StateRules& rules) {
  if (rules.zero < 2) return fp32 * (parameters.dense + parameters.expert);
  return fp32 * owned_parameters(parameters, shards, rules);
}

}  // namespace moesim::model
