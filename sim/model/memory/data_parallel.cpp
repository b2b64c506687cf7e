#include "sim/model/memory/data_parallel.hpp"

#include "sim/base/units.hpp"

namespace moesim::model {

BufferBytes reduced_bytes(const StageParameters& parameters, const StateRules& rules) {
  return {rules.gradient_bytes * parameters.dense, rules.gradient_bytes * parameters.expert};
}

BufferBytes gathered_bytes(const StageParameters& parameters, const StateRules& rules) {
  const double product = gathered_weight_bytes(rules.precision, rules.gathers_low());
  return {product * parameters.gemm + bf16_bytes * (parameters.dense - parameters.gemm),
          product * parameters.expert};
}

double owned_parameters(const StageParameters& parameters, const ShardSizes& shards,
                        const StateRules& rules) {
  if (rules.zero == 0) return parameters.dense + parameters.expert;
  return (parameters.dense / sharing_ranks(shards.dense_replicas(), rules) +
          parameters.expert / sharing_ranks(shards.expert_data, rules)) /
         owners(shards, rules);
}

double adam_bytes(const StateRules& rules) {
  const double states = fp32_bytes + 2 * rules.moment_bytes;
  return fp32_bytes + 2 * states + bf16_bytes;
}

double weight_cast_bytes(const StateRules& rules) {
  if (rules.precision == Precision::bf16) return 0;
  const double copies = gemm_weight_bytes(rules.precision, rules.transposed_copies);
  if (!rules.gathers_low()) return quantize_bytes(rules.precision, 0) + copies;
  const double gathered = element_bytes(rules.precision);
  return copies > gathered ? copies : 0;  // reads one, writes the other
}

double optimizer_bytes(const StageParameters& parameters, const ShardSizes& shards,
                       const StateRules& rules) {
  constexpr double norm_and_scale = 3;
  const double cleared = clear_gradient_bytes(parameters, shards, rules) / fp32_bytes;
  return (adam_bytes(rules) + norm_and_scale * rules.gradient_bytes) *
             owned_parameters(parameters, shards, rules) +
         cleared * rules.gradient_bytes +
         weight_cast_bytes(rules) * (parameters.gemm + parameters.expert);
}

double clear_gradient_bytes(const StageParameters& parameters, const ShardSizes& shards,
                            const StateRules& rules) {
  if (rules.zero < 2) return fp32_bytes * (parameters.dense + parameters.expert);
  // Each copy of a stage adds up gradients of its own.
  return fp32_bytes * owners(shards, rules) * owned_parameters(parameters, shards, rules);
}

}  // namespace moesim::model
