#include "sim/parallel/parallel_layout.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "tests/support/catch.hpp"

using moesim::parallel::DomainsTouched;
using moesim::parallel::group_names;
using moesim::parallel::GroupKind;
using moesim::parallel::ParallelLayout;

namespace {

using Groups = std::vector<std::vector<int>>;

ParallelLayout layout(int gpus, int tensor, int context, int pipeline, int expert,
                      int expert_tensor = 1) {
  ParallelLayout made;
  made.gpus = gpus;
  made.tensor = tensor;
  made.context = context;
  made.pipeline = pipeline;
  made.expert = expert;
  made.expert_tensor = expert_tensor;
  return made;
}

Groups first(const Groups& groups, std::size_t count) {
  REQUIRE(groups.size() >= count);
  return {groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

// The groups below are those that Megatron-LM's RankGenerator makes (d98e8a6,
// megatron/core/parallel_state.py) in its default order.
TEST_CASE("groups of 16 GPUs are Megatron's") {
  const ParallelLayout made = layout(16, 2, 1, 2, 4);
  CHECK(made.data() == 4);
  CHECK(made.expert_data() == 2);
  CHECK(made.groups(GroupKind::tensor) ==
        Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}});
  CHECK(made.groups(GroupKind::pipeline) ==
        Groups{{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}});
  CHECK(made.groups(GroupKind::data) ==
        Groups{{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}});
  CHECK(made.groups(GroupKind::expert) ==
        Groups{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}});
  CHECK(made.groups(GroupKind::expert_data) ==
        Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}, {8, 12}, {9, 13}, {10, 14}, {11, 15}});
  for (const GroupKind alone : {GroupKind::context, GroupKind::expert_tensor}) {
    const Groups groups = made.groups(alone);
    REQUIRE(groups.size() == 16);
    for (int rank = 0; rank < 16; ++rank) {
      CHECK(groups[static_cast<std::size_t>(rank)] == std::vector<int>{rank});
    }
  }
}

TEST_CASE("experts fold over the context and data parallelism of attention") {
  const ParallelLayout made = layout(16, 2, 2, 2, 8);
  CHECK(first(made.groups(GroupKind::context), 3) == Groups{{0, 2}, {1, 3}, {4, 6}});
  CHECK(first(made.groups(GroupKind::data), 2) == Groups{{0, 4}, {1, 5}});
  CHECK(first(made.groups(GroupKind::data_context), 1) == Groups{{0, 2, 4, 6}});
  CHECK(made.groups(GroupKind::expert) ==
        Groups{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}});
  CHECK(made.group_size(GroupKind::expert_data) == 1);
  CHECK(made.data() == 2);  // EP 8 is more than that
}

TEST_CASE("slices of experts lie side by side") {
  const ParallelLayout made = layout(32, 2, 2, 2, 4, 2);
  CHECK(first(made.groups(GroupKind::expert), 3) ==
        Groups{{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}});
  CHECK(first(made.groups(GroupKind::expert_tensor), 1) == Groups{{0, 1}});
  CHECK(first(made.groups(GroupKind::expert_data), 2) == Groups{{0, 8}, {1, 9}});
  CHECK(first(made.groups(GroupKind::data), 1) == Groups{{0, 4, 8, 12}});
  // One group of both for dispatchers: ranks in a row.
  CHECK(first(made.groups(GroupKind::expert_tensor_expert), 1) == Groups{{0, 1, 2, 3, 4, 5, 6, 7}});
}

TEST_CASE("sizes of data parallelism follow") {
  CHECK(layout(256, 1, 1, 2, 32).data() == 128);
  CHECK(layout(256, 1, 1, 2, 32).expert_data() == 4);
  CHECK(layout(256, 1, 1, 8, 32).expert_data() == 1);
  CHECK(layout(1024, 2, 1, 8, 64).data() == 64);
  CHECK(layout(1024, 2, 1, 8, 64).expert_data() == 2);
}

TEST_CASE("every rank is in one group of each kind") {
  const ParallelLayout made = layout(96, 2, 2, 3, 4, 2);
  for (const auto& name : group_names) {
    CAPTURE(name.name);
    std::vector<int> seen(96, 0);
    for (const std::vector<int>& group : made.groups(name.value)) {
      CHECK(static_cast<int>(group.size()) == made.group_size(name.value));
      CHECK(std::is_sorted(group.begin(), group.end()));
      for (const int rank : group) ++seen[static_cast<std::size_t>(rank)];
    }
    CHECK(seen == std::vector<int>(96, 1));
  }
}

TEST_CASE("groups touch NVLink domains by the ranks placed in each") {
  const ParallelLayout made = layout(256, 1, 1, 2, 64);
  const auto touched = [&](int ranks_per_domain) {
    return made.domains_touched(GroupKind::expert, ranks_per_domain);
  };
  // 64 ranks in a row: 8 nodes of 8; one rack of 64; ranks 64 to 127 lie in racks 0 (up to 71)
  // and 1.
  CHECK((touched(8).least == 8 && touched(8).most == 8));
  CHECK((touched(64).least == 1 && touched(64).most == 1));
  CHECK((touched(72).least == 1 && touched(72).most == 2));
  // Ranks r and r + 128 of a pipeline are never in one node, always in one domain of 256.
  const DomainsTouched stages = made.domains_touched(GroupKind::pipeline, 8);
  CHECK((stages.least == 2 && stages.most == 2));
  CHECK(made.domains_touched(GroupKind::pipeline, 256).most == 1);
}

TEST_CASE("the other copy of a stage lies as far behind the middle of the pipeline") {
  // Four stages of four ranks; experts have one replica a stage. Ranks 0 and 12, 4 and 8.
  const ParallelLayout made = layout(16, 1, 1, 4, 4);
  CHECK(made.widest_mirrored_group(GroupKind::expert_data, 8) == std::vector<int>{0, 12});
  CHECK(made.widest_mirrored_group(GroupKind::data_context, 8) ==
        std::vector<int>{0, 1, 2, 3, 12, 13, 14, 15});
  // Six stages of four: ranks 8 to 11 and 12 to 15 are in one node, the others are not.
  CHECK(layout(24, 1, 1, 6, 4).widest_mirrored_group(GroupKind::expert_data, 8) ==
        std::vector<int>{0, 20});
  CHECK(layout(16, 1, 1, 2, 4).widest_mirrored_group(GroupKind::expert_data, 4) ==
        std::vector<int>{0, 4, 8, 12});
  // Four stages of six, in domains of nine: stages 1 and 2 are ranks 6 to 11 and 12 to 17.
  CHECK(layout(24, 1, 1, 4, 6).widest_mirrored_group(GroupKind::data_context, 9) ==
        std::vector<int>{0, 1, 2, 3, 4, 5, 18, 19, 20, 21, 22, 23});
}

TEST_CASE("groups of both copies of a stage hold every rank once") {
  const ParallelLayout made = layout(16, 1, 1, 4, 2);  // four stages of four, EDP 2
  using Groups = std::vector<std::vector<int>>;
  CHECK(made.mirrored_groups(GroupKind::expert_data) ==
        Groups{{0, 2, 12, 14}, {1, 3, 13, 15}, {4, 6, 8, 10}, {5, 7, 9, 11}});
  CHECK(made.mirrored_groups(GroupKind::data_context) ==
        Groups{{0, 1, 2, 3, 12, 13, 14, 15}, {4, 5, 6, 7, 8, 9, 10, 11}});
  // In domains of 12 ranks 4 to 11 are together, 0 to 3 and 12 to 15 are not.
  CHECK(made.mirrored_domains_touched(GroupKind::expert_data, 8).least == 2);
  CHECK(made.mirrored_domains_touched(GroupKind::expert_data, 8).most == 2);
  CHECK(made.mirrored_domains_touched(GroupKind::expert_data, 12).least == 1);
  CHECK(made.mirrored_domains_touched(GroupKind::expert_data, 12).most == 2);
}

TEST_CASE("the widest group is the first of those that touch most domains") {
  const auto domains_of = [](const std::vector<int>& group, int ranks_per_domain) {
    std::set<int> domains;
    for (const int rank : group) domains.insert(rank / ranks_per_domain);
    return static_cast<int>(domains.size());
  };
  for (const ParallelLayout& made :
       {layout(16, 2, 1, 2, 4), layout(24, 2, 2, 1, 3, 2), layout(96, 1, 2, 3, 8),
        layout(256, 4, 1, 2, 64), layout(144, 2, 1, 1, 36, 2)}) {
    for (const int ranks_per_domain : {1, 3, 4, 8, 18, 72, 256}) {
      for (std::size_t kind = 0; kind < group_names.size(); ++kind) {
        const GroupKind each = static_cast<GroupKind>(kind);
        CAPTURE(made.gpus, ranks_per_domain, group_names[kind]);
        std::vector<int> widest;
        int most = 0, least = made.gpus;
        for (const std::vector<int>& group : made.groups(each)) {
          const int domains = domains_of(group, ranks_per_domain);
          least = std::min(least, domains);
          if (domains <= most) continue;
          most = domains;
          widest = group;
        }
        CHECK(made.widest_group(each, ranks_per_domain) == widest);
        const DomainsTouched touched = made.domains_touched(each, ranks_per_domain);
        CHECK((touched.least == least && touched.most == most));
      }
    }
  }
}
