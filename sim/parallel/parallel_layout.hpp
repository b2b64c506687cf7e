#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/base/enum_names.hpp"

namespace moesim::parallel {

// Sets of ranks that work together. The meaning says what they exchange.
enum class GroupKind {
  tensor,
  context,
  data,
  data_context,
  expert,
  expert_tensor,
  expert_tensor_expert,
  expert_data,
  pipeline,
};
inline constexpr EnumNames<GroupKind, 9> group_names{{
    {GroupKind::tensor, "tp", "activations; embedding and loss, divided by vocabulary"},
    {GroupKind::context, "cp", "keys and values of attention"},
    {GroupKind::data, "dp", "ranks with the same dense weights and other sequences"},
    {GroupKind::data_context, "dp-cp", "gradients, parameters, optimizer state outside experts"},
    {GroupKind::expert, "ep", "dispatch and combine"},
    {GroupKind::expert_tensor, "etp", "slices of an expert's FFN"},
    {GroupKind::expert_tensor_expert, "etp-ep", "dispatch and combine of a dispatcher with both"},
    {GroupKind::expert_data, "edp", "gradients, parameters, optimizer state of experts"},
    {GroupKind::pipeline, "pp", "activations between stages"},
}};

// The number of NVLink domains that a group touches: over all groups of a kind.
struct DomainsTouched {
  int least = 0;
  int most = 0;
};

// How the GPUs of a training job are divided. Attention has GPUs = TP CP DP PP, the experts
// GPUs = ETP EP EDP PP; both have the same stages, within which the two divisions are independent
// ("parallel folding", arXiv:2504.14960). Ranks are numbered in Megatron-Core's default order
// tp-cp-ep-dp-pp (megatron/core/parallel_state.py), the left-most fastest:
//   attention: rank = tp + TP (cp + CP (dp + DP pp)), experts: rank = etp + ETP (ep + EP (edp + EDP
//   pp))
// The functions need sizes of at least 1 that divide the GPUs: layout_refusal() checks.
struct ParallelLayout {
  int gpus = 1;
  int tensor = 1;
  int context = 1;
  int pipeline = 1;
  int virtual_pipeline = 1;  // chunks of a rank
  int expert = 1;
  int expert_tensor = 1;

  int data() const { return gpus / pipeline / tensor / context; }
  int expert_data() const { return gpus / pipeline / expert_tensor / expert; }
  // Ranks of one data-parallel, and one expert-data-parallel, replica of the model; of any sizes.
  std::int64_t attention_ranks() const { return std::int64_t{tensor} * context * pipeline; }
  std::int64_t expert_ranks() const { return std::int64_t{expert_tensor} * expert * pipeline; }

  int group_size(GroupKind kind) const;
  // All groups of a kind, each in the order of its coordinates, which is ascending; each rank is in
  // exactly one. In the order of the coordinates outside, as Megatron-Core creates them.
  std::vector<std::vector<int>> groups(GroupKind kind) const;
  // The domains floor(rank / ranks_per_domain) of the members. Precondition: ranks_per_domain > 0.
  DomainsTouched domains_touched(GroupKind kind, int ranks_per_domain) const;
  // The first of the groups that touch most of them.
  std::vector<int> widest_group(GroupKind kind, int ranks_per_domain) const;
  // DualPipe: both copies of a stage, which pipeline ranks r and PP - 1 - r have. Each group of a
  // stage together with the one in its place of the other copy, whose members come behind; all of
  // them, and the domains that they touch. Preconditions: as widest_mirrored_group().
  std::vector<std::vector<int>> mirrored_groups(GroupKind kind) const;
  DomainsTouched mirrored_domains_touched(GroupKind kind, int ranks_per_domain) const;
  // DualPipe: a group of a stage together with the one in its place of the stage that pipeline rank
  // PP - 1 - r has, whose members come behind; of all such the first of those that touch most
  // domains. Preconditions: an even number of stages, and groups within one (not
  // GroupKind::pipeline).
  std::vector<int> widest_mirrored_group(GroupKind kind, int ranks_per_domain) const;
};

}  // namespace moesim::parallel
