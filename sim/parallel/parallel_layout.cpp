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

std::vector<int> group_from(const Axes& axes, int first) {
  std::vector<int> ranks = ranks_along(axes, true);
  for (int& rank : ranks) rank += first;
  return ranks;
}

struct PlacedGroup {
  int first = 0;    // rank
  int domains = 0;  // that it touches
};

// The first of the groups that lie on domains in the same way: those whose first ranks have the
// same place in their domain touch equally many. Rank 0 of the axes is rank `origin`.
template <typename Use>
void for_each_place(const Axes& axes, int ranks_per_domain, int origin, Use use) {
  assert(ranks_per_domain > 0);
  const std::vector<int> members = ranks_along(axes, true);
  const std::vector<int> firsts = ranks_along(axes, false);
  const std::size_t ranks = static_cast<std::size_t>(origin) + members.size() * firsts.size();
  std::vector<char> seen(std::min(ranks, static_cast<std::size_t>(ranks_per_domain)), 0);
  for (const int along : firsts) {
    const int first = origin + along;
    char& is_seen = seen[static_cast<std::size_t>(first % ranks_per_domain)];
    if (is_seen != 0) continue;
    is_seen = 1;
    PlacedGroup group{first};
    int last = -1;
    for (const int rank : members) {  // ascending
      const int domain = (first + rank) / ranks_per_domain;
      group.domains += domain != last ? 1 : 0;
      last = domain;
    }
    use(group);
  }
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
  DomainsTouched touched{gpus, 0};
  for_each_place(axes_of(*this, kind), ranks_per_domain, 0, [&](const PlacedGroup& group) {
    touched.least = std::min(touched.least, group.domains);
    touched.most = std::max(touched.most, group.domains);
  });
  return touched;
}

std::vector<int> ParallelLayout::widest_group(GroupKind kind, int ranks_per_domain) const {
  PlacedGroup widest;
  const Axes axes = axes_of(*this, kind);
  for_each_place(axes, ranks_per_domain, 0, [&](const PlacedGroup& group) {
    if (group.domains > widest.domains) widest = group;
  });
  return group_from(axes, widest.first);
}

namespace {

// For the stages of each pipeline rank in the first half: the axes of a stage and its other copy,
// and the rank that rank 0 of them is.
template <typename Use>
void for_each_mirrored(const ParallelLayout& layout, GroupKind kind, Use use) {
  assert(layout.pipeline % 2 == 0 && kind != GroupKind::pipeline);
  const int stage = layout.gpus / layout.pipeline;
  for (int lower = 0; lower < layout.pipeline / 2; ++lower) {
    Axes axes = axes_of(layout, kind);
    axes.back() = {2, (layout.pipeline - 1 - 2 * lower) * stage, true};  // that of stages is last
    use(axes, lower * stage);
  }
}

}  // namespace

std::vector<std::vector<int>> ParallelLayout::mirrored_groups(GroupKind kind) const {
  std::vector<std::vector<int>> groups;
  for_each_mirrored(*this, kind, [&](const Axes& axes, int origin) {
    for (const int first : ranks_along(axes, false)) {
      groups.push_back(group_from(axes, origin + first));
    }
  });
  return groups;
}

DomainsTouched ParallelLayout::mirrored_domains_touched(GroupKind kind,
                                                        int ranks_per_domain) const {
  DomainsTouched touched{gpus, 0};
  for_each_mirrored(*this, kind, [&](const Axes& axes, int origin) {
    for_each_place(axes, ranks_per_domain, origin, [&](const PlacedGroup& group) {
      touched.least = std::min(touched.least, group.domains);
      touched.most = std::max(touched.most, group.domains);
    });
  });
  return touched;
}

std::vector<int> ParallelLayout::widest_mirrored_group(GroupKind kind, int ranks_per_domain) const {
  PlacedGroup widest;
  Axes of_widest;
  for_each_mirrored(*this, kind, [&](const Axes& axes, int origin) {
    for_each_place(axes, ranks_per_domain, origin, [&](const PlacedGroup& group) {
      if (group.domains <= widest.domains) return;
      widest = group;
      of_widest = axes;
    });
  });
  return group_from(of_widest, widest.first);
}

}  // namespace moesim::parallel
