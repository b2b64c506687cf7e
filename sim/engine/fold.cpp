#include "sim/engine/fold.hpp"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace moesim::engine {
namespace {

struct PairHash {
  std::size_t operator()(const std::pair<std::int64_t, std::int64_t>& pair) const {
    // The finalizer of SplitMix64 (Steele et al. 2014) over both halves.
    auto mixed = static_cast<std::uint64_t>(pair.first) * 0x9e3779b97f4a7c15u +
                 static_cast<std::uint64_t>(pair.second);
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    return static_cast<std::size_t>(mixed ^ mixed >> 31);
  }
};

// The classes so far, numbered in the order of the ranks so that the numbers are the same on every
// machine.
class Colours {
 public:
  explicit Colours(int ranks) : colour_(static_cast<std::size_t>(ranks)) {}

  int count() const { return count_; }
  bool all_apart() const { return count_ == static_cast<int>(colour_.size()); }
  int of(int rank) const { return colour_[static_cast<std::size_t>(rank)]; }

  // Ranks stay in one class if they were in one and have the same `property(rank)`.
  template <class Property>
  void split(Property property) {
    if (all_apart() || agrees(property)) return;
    std::unordered_map<std::pair<std::int64_t, std::int64_t>, int, PairHash> known;
    for (std::size_t rank = 0; rank < colour_.size(); ++rank) {
      const std::pair<std::int64_t, std::int64_t> key{colour_[rank],
                                                      property(static_cast<int>(rank))};
      colour_[rank] = known.try_emplace(key, static_cast<int>(known.size())).first->second;
    }
    count_ = static_cast<int>(known.size());
  }

 private:
  // Whether all ranks of each class have the same property, so that no class has to be split.
  template <class Property>
  bool agrees(Property property) const {
    std::vector<std::int64_t> value(static_cast<std::size_t>(count_));
    std::vector<bool> seen(value.size());
    for (std::size_t rank = 0; rank < colour_.size(); ++rank) {
      const auto colour = static_cast<std::size_t>(colour_[rank]);
      const std::int64_t own = property(static_cast<int>(rank));
      if (seen[colour] && value[colour] != own) return false;
      seen[colour] = true;
      value[colour] = own;
    }
    return true;
  }

  std::vector<int> colour_;
  int count_ = 1;
};

bool is_exchange(const Operation& operation) { return operation.groups >= 0; }

// Which partitions are used, and which of them by uneven exchanges.
struct Uses {
  std::vector<bool> used, uneven;
};

Uses uses_of(const Program& program, const Durations& durations, const Traffic* traffic) {
  Uses uses;
  uses.used.resize(program.partitions.size());
  uses.uneven.resize(program.partitions.size());
  for (std::size_t op = 0; op < program.operations.size(); ++op) {
    if (!is_exchange(program.operations[op]) || durations.skips(static_cast<int>(op))) continue;
    const auto partition = static_cast<std::size_t>(program.operations[op].groups);
    uses.used[partition] = true;
    if (traffic != nullptr && traffic->is_uneven(static_cast<int>(op))) {
      uses.uneven[partition] = true;
    }
  }
  return uses;
}

std::vector<int> places(const Partition& partition, int ranks) {
  std::vector<int> place(static_cast<std::size_t>(ranks));
  for (const std::vector<int>& group : partition.groups) {
    for (std::size_t at = 0; at < group.size(); ++at) {
      place[static_cast<std::size_t>(group[at])] = static_cast<int>(at);
    }
  }
  return place;
}

// Splits ranks whose groups the clock treats differently.
void split_by_links(const Partition& partition, const network::ExchangeClock& clock,
                    Colours& colours) {
  std::map<std::vector<std::int64_t>, int> known;
  std::vector<int> alike;
  for (const std::vector<int>& group : partition.groups) {
    const int next = static_cast<int>(known.size());
    alike.push_back(known.try_emplace(clock.equivalence_key(group), next).first->second);
  }
  colours.split([&](int rank) {
    return alike[static_cast<std::size_t>(partition.group_of[static_cast<std::size_t>(rank)])];
  });
}

void split_by_durations(const Program& program, const Durations& durations, const Traffic* traffic,
                        Colours& colours) {
  for (std::size_t op = 0; op < program.operations.size(); ++op) {
    const Operation& operation = program.operations[op];
    const int number = static_cast<int>(op);
    if (!is_exchange(operation)) {
      const std::vector<Picoseconds>& each = durations.per_rank[op];
      if (each.empty()) continue;
      colours.split([&](int rank) { return each[static_cast<std::size_t>(rank)].count; });
      continue;
    }
    if (durations.skips(number)) continue;
    const Partition& partition = program.partitions[static_cast<std::size_t>(operation.groups)];
    const auto group_of = [&](int rank) {
      return partition.group_of[static_cast<std::size_t>(rank)];
    };
    if (traffic != nullptr && traffic->is_uneven(number)) {
      colours.split([&](int rank) { return traffic->pattern(number, group_of(rank)); });
    } else if (!durations.per_rank[op].empty()) {
      colours.split([&](int rank) {
        const auto& group = partition.groups[static_cast<std::size_t>(group_of(rank))];
        return durations.of(number, group.front()).count;
      });
    }
  }
}

// The classes that the groups of a partition hold, numbered: [group].
std::vector<int> signatures(const Partition& partition, bool placed, const Colours& colours) {
  std::map<std::vector<int>, int> known;
  std::vector<int> signature;
  std::vector<int> held;
  for (const std::vector<int>& group : partition.groups) {
    held.clear();
    for (const int rank : group) {
      // Consecutive ranks often have the same class: such runs are stored once.
      if (placed || held.empty() || held.back() != colours.of(rank))
        held.push_back(colours.of(rank));
    }
    if (!placed) {
      std::sort(held.begin(), held.end());
      held.erase(std::unique(held.begin(), held.end()), held.end());
    }
    signature.push_back(known.try_emplace(held, static_cast<int>(known.size())).first->second);
  }
  return signature;
}

FoldedPartition folded(const Partition& partition, bool placed, const Colours& colours) {
  const std::vector<int> signature = signatures(partition, placed, colours);
  FoldedPartition result;
  result.columns.group_of.assign(static_cast<std::size_t>(colours.count()), 0);
  for (std::size_t group = 0; group < signature.size(); ++group) {
    // New signatures are numbered in order of appearance.
    if (signature[group] != static_cast<int>(result.whole_groups.size())) continue;
    std::vector<int> columns;
    for (const int rank : partition.groups[group]) columns.push_back(colours.of(rank));
    if (!placed) {
      std::sort(columns.begin(), columns.end());
      columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
    }
    for (const int column : columns) {
      result.columns.group_of[static_cast<std::size_t>(column)] = signature[group];
    }
    result.columns.groups.push_back(std::move(columns));
    result.whole_groups.push_back(static_cast<int>(group));
  }
  return result;
}

void refine(const Program& program, const Uses& uses, Colours& colours) {
  int before = 0;
  while (before != colours.count() && !colours.all_apart()) {
    before = colours.count();
    for (std::size_t number = 0; number < program.partitions.size(); ++number) {
      if (!uses.used[number]) continue;
      const Partition& partition = program.partitions[number];
      const std::vector<int> signature = signatures(partition, uses.uneven[number], colours);
      colours.split([&](int rank) {
        return signature[static_cast<std::size_t>(
            partition.group_of[static_cast<std::size_t>(rank)])];
      });
    }
  }
}

}  // namespace

Fold fold(const Program& program, const Durations& durations, const Traffic* traffic,
          const network::ExchangeClock* clock) {
  Colours colours(program.ranks);
  const Uses uses = uses_of(program, durations, traffic);
  for (std::size_t number = 0; number < program.partitions.size(); ++number) {
    if (!uses.uneven[number]) continue;
    const std::vector<int> place = places(program.partitions[number], program.ranks);
    colours.split([&](int rank) { return place[static_cast<std::size_t>(rank)]; });
    assert(clock != nullptr);
    split_by_links(program.partitions[number], *clock, colours);
  }
  split_by_durations(program, durations, traffic, colours);
  refine(program, uses, colours);

  Fold result;
  if (colours.all_apart()) {
    result.representative.resize(static_cast<std::size_t>(program.ranks));
    std::iota(result.representative.begin(), result.representative.end(), 0);
    return result;
  }
  for (int rank = 0; rank < program.ranks; ++rank) {
    result.column_of.push_back(colours.of(rank));
    if (colours.of(rank) == static_cast<int>(result.representative.size())) {
      result.representative.push_back(rank);
    }
  }
  for (std::size_t number = 0; number < program.partitions.size(); ++number) {
    result.partitions.push_back(
        uses.used[number] ? folded(program.partitions[number], uses.uneven[number], colours)
                          : FoldedPartition{});
  }
  return result;
}

}  // namespace moesim::engine
