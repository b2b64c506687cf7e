#include "sim/parallel/parallel_layout.hpp"

#include <algorithm>
#include <cassert>

namespace moesim::parallel {
namespace {

// One coordinate of a rank: rank = sum of coordinate x stride.
struct Axis {
  int size = 1;
  int stride = 1;
  bool inside = false;  // the members of a group differ in it
};
using Axes = std::vector<Axis>;

// Axes of these sizes, the fastest first; `inside` says which of them a group spans.
Axes make_axes(const std::vector<int>& sizes, const std::vector<bool>& inside) {
  Axes axes;
  int stride = 1;
  for (std::size_t index = 0; index < sizes.size(); ++index) {
    axes.push_back({sizes[index], stride, inside[index]});
    stride *= sizes[index];
  }
  return axes;
}

Axes axes_of(const ParallelLayout& layout, GroupKind kind) {
  const std::vector<int> attention{layout.tensor, layout.context, layout.data(), layout.pipeline};
  const std::vector<int> experts{layout.expert_tensor, layout.expert, layout.expert_data(),
                                 layout.pipeline};
  switch (kind) {
    case GroupKind::tensor:
      return make_axes(attention, {true, false, false, false});
    case GroupKind::context:
      return make_axes(attention, {false, true, false, false});
    case GroupKind::data:
      return make_axes(attention, {false, false, true, false});
    case GroupKind::data_context:
      return make_axes(attention, {false, true, true, false});
    case GroupKind::expert:
      return make_axes(experts, {false, true, false, false});
    case GroupKind::expert_tensor:
      return make_axes(experts, {true, false, false, false});
    case GroupKind::expert_tensor_expert:
      return make_axes(experts, {true, true, false, false});
    case GroupKind::expert_data:
      return make_axes(experts, {false, false, true, false});
    case GroupKind::pipeline:
      return make_axes(attention, {false, false, false, true});
  }
  return {};
}

// The ranks with all coordinates of the axes inside (or outside) of a group, the others being 0.
std::vector<int> ranks_along(const Axes& axes, bool inside) {
  std::vector<int> ranks{0};
  for (const Axis& axis : axes) {
    if (axis.inside != inside) continue;
    const std::vector<int> faster = ranks;
    for (int at = 1; at < axis.size; ++at) {
      for (const int rank : faster) ranks.push_back(rank + at * axis.stride);
    }
  }
  return ranks;
}

}  // namespace

int ParallelLayout::group_size(GroupKind kind) const {
  int size = 1;
  for (const Axis& axis : axes_of(*this, kind)) size *= axis.inside ? axis.size : 1;
  return size;
}

std::vector<std::vector<int>> ParallelLayout::groups(GroupKind kind) const {
  const Axes axes = axes_of(*this, kind);
  const std::vector<int> members = ranks_along(axes, true);
  std::vector<std::vector<int>> groups;
  for (const int first : ranks_along(axes, false)) {
    std::vector<int>& group = groups.emplace_back(members);
    for (int& rank : group) rank += first;
  }
  return groups;
}

DomainsTouched ParallelLayout::domains_touched(GroupKind kind, int ranks_per_domain) const {
  assert(ranks_per_domain > 0);
  const Axes axes = axes_of(*this, kind);
  const std::vector<int> members = ranks_along(axes, true);
  DomainsTouched touched{gpus, 0};
  for (const int first : ranks_along(axes, false)) {
    int domains = 0;
    int last = -1;
    for (const int rank : members) {  // ascending
      const int domain = (first + rank) / ranks_per_domain;
      domains += domain != last ? 1 : 0;
      last = domain;
    }
    touched.least = std::min(touched.least, domains);
    touched.most = std::max(touched.most, domains);
  }
  return touched;
}

}  // namespace moesim::parallel
