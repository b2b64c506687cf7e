#include "sim/cluster/expert_placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/error.hpp"

namespace moesim::cluster {
namespace {

void check_counts(int experts, int ranks) {
  if (ranks < 1 || experts < 1 || experts % ranks != 0) {
    throw UsageError(
        fmt::format("{} experts cannot be shared out evenly over {} ranks", experts, ranks));
  }
}

void check_loads(std::span<const double> loads) {
  for (std::size_t expert = 0; expert < loads.size(); ++expert) {
    if (loads[expert] >= 0 && std::isfinite(loads[expert])) continue;
    throw UsageError(fmt::format("expert {}: a load of {}: loads are finite and not below 0",
                                 expert, loads[expert]));
  }
}

// How many replicas each expert gets when `spare` of them are given, one at a time, to the expert
// with the highest load per replica: the order that lowers the highest one most.
std::vector<int> replica_counts(std::span<const double> loads, int ranks, std::int64_t spare) {
  std::vector<int> replicas(loads.size(), 1);
  const auto per_replica = [&](std::size_t expert) { return loads[expert] / replicas[expert]; };
  for (; spare > 0; --spare) {
    std::size_t hottest = loads.size();
    for (std::size_t expert = 0; expert < loads.size(); ++expert) {
      if (replicas[expert] == ranks || loads[expert] == 0) continue;
      if (hottest == loads.size() || per_replica(expert) > per_replica(hottest)) hottest = expert;
    }
    if (hottest == loads.size()) break;
    ++replicas[hottest];
  }
  return replicas;
}

// Places replicas one at a time; ranks have room for `room` each.
class Packer {
 public:
  Packer(int ranks, int room, std::size_t experts)
      : room_(room), load_(static_cast<std::size_t>(ranks)), held_(load_.size()) {
    placement_.ranks = ranks;
    placement_.ranks_of.resize(experts);
  }

  void place(int expert, double load) {
    int target = least_loaded(expert);
    // Every rank with room has this expert already. A full rank without it has room_ other experts,
    // a rank with room fewer: one of them can move there.
    if (target < 0) target = make_room(expert);
    add(expert, target, load);
  }

  ExpertPlacement finish() {
    for (std::vector<int>& ranks : placement_.ranks_of) std::sort(ranks.begin(), ranks.end());
    return std::move(placement_);
  }

 private:
  struct Held {
    int expert;
    double load;
  };
  std::vector<Held>& held(int rank) { return held_[static_cast<std::size_t>(rank)]; }
  bool full(int rank) { return held(rank).size() == static_cast<std::size_t>(room_); }
  bool has(int rank, int expert) {
    const std::vector<Held>& here = held(rank);
    return std::any_of(here.begin(), here.end(),
                       [&](const Held& one) { return one.expert == expert; });
  }

  int least_loaded(int expert) {
    int best = -1;
    for (int rank = 0; rank < placement_.ranks; ++rank) {
      if (full(rank) || has(rank, expert)) continue;
      if (best < 0 || load_[static_cast<std::size_t>(rank)] < load_[static_cast<std::size_t>(best)])
        best = rank;
    }
    return best;
  }

  int make_room(int expert) {
    int roomy = 0;
    while (full(roomy)) ++roomy;
    for (int rank = 0; rank < placement_.ranks; ++rank) {
      if (has(rank, expert)) continue;
      for (const Held& one : held(rank)) {
        if (has(roomy, one.expert)) continue;
        const Held moved = one;
        remove(moved, rank);
        add(moved.expert, roomy, moved.load);
        return rank;
      }
    }
    throw Error("an expert's replicas do not fit the ranks");  // more replicas than ranks
  }

  void add(int expert, int rank, double load) {
    held(rank).push_back({expert, load});
    load_[static_cast<std::size_t>(rank)] += load;
    placement_.ranks_of[static_cast<std::size_t>(expert)].push_back(rank);
  }

  void remove(const Held& one, int rank) {
    std::vector<Held>& here = held(rank);
    here.erase(std::find_if(here.begin(), here.end(),
                            [&](const Held& other) { return other.expert == one.expert; }));
    load_[static_cast<std::size_t>(rank)] -= one.load;
    std::vector<int>& ranks = placement_.ranks_of[static_cast<std::size_t>(one.expert)];
    ranks.erase(std::find(ranks.begin(), ranks.end(), rank));
  }

  int room_;
  std::vector<double> load_;             // [rank]
  std::vector<std::vector<Held>> held_;  // [rank]
  ExpertPlacement placement_;
};

// Longest processing time first: the heaviest replicas are placed while all ranks are open to them.
ExpertPlacement pack(std::span<const double> loads, const std::vector<int>& replicas, int ranks,
                     int room) {
  std::vector<int> order(loads.size());
  std::iota(order.begin(), order.end(), 0);
  const auto load_of = [&](int expert) {
    const auto index = static_cast<std::size_t>(expert);
    return loads[index] / replicas[index];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int left, int right) { return load_of(left) > load_of(right); });
  Packer packer(ranks, room, loads.size());
  for (const int expert : order) {
    for (int copy = 0; copy < replicas[static_cast<std::size_t>(expert)]; ++copy) {
      packer.place(expert, load_of(expert));
    }
  }
  return packer.finish();
}

std::int64_t product(std::int64_t tokens, std::int64_t bytes_per_token) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(tokens, bytes_per_token, &bytes)) {
    throw UsageError(fmt::format("{} tokens of {} bytes are too many", tokens, bytes_per_token));
  }
  return bytes;
}

}  // namespace

std::vector<int> ExpertPlacement::slots() const {
  std::vector<int> counts(static_cast<std::size_t>(ranks));
  for (const std::vector<int>& holders : ranks_of) {
    for (const int rank : holders) ++counts[static_cast<std::size_t>(rank)];
  }
  return counts;
}

std::vector<double> ExpertPlacement::rank_loads(std::span<const double> loads) const {
  std::vector<double> sums(static_cast<std::size_t>(ranks));
  for (std::size_t expert = 0; expert < ranks_of.size(); ++expert) {
    const double part = loads[expert] / static_cast<double>(ranks_of[expert].size());
    for (const int rank : ranks_of[expert]) sums[static_cast<std::size_t>(rank)] += part;
  }
  return sums;
}

double ExpertPlacement::highest_load(std::span<const double> loads) const {
  const std::vector<double> sums = rank_loads(loads);
  return *std::max_element(sums.begin(), sums.end());
}

ExpertPlacement contiguous_experts(int experts, int ranks) {
  check_counts(experts, ranks);
  ExpertPlacement placement{ranks, {}};
  for (int expert = 0; expert < experts; ++expert) {
    placement.ranks_of.push_back({expert / (experts / ranks)});
  }
  return placement;
}

ExpertPlacement round_robin_experts(int experts, int ranks) {
  check_counts(experts, ranks);
  ExpertPlacement placement{ranks, {}};
  for (int expert = 0; expert < experts; ++expert) placement.ranks_of.push_back({expert % ranks});
  return placement;
}

ExpertPlacement balanced_experts(std::span<const double> loads, int ranks) {
  const int experts = static_cast<int>(loads.size());
  ExpertPlacement contiguous = contiguous_experts(experts, ranks);
  check_loads(loads);
  ExpertPlacement greedy = pack(loads, std::vector<int>(loads.size(), 1), ranks, experts / ranks);
  const bool worse = greedy.highest_load(loads) > contiguous.highest_load(loads);
  return worse ? contiguous : greedy;
}

ExpertPlacement replicated_experts(std::span<const double> loads, int ranks, int spare_slots) {
  if (spare_slots < 0) throw UsageError(fmt::format("{} spare slots per rank", spare_slots));
  ExpertPlacement balanced = balanced_experts(loads, ranks);
  if (spare_slots == 0) return balanced;
  const auto spare = static_cast<std::int64_t>(spare_slots) * ranks;
  const int room = static_cast<int>(loads.size()) / ranks + spare_slots;
  ExpertPlacement greedy = pack(loads, replica_counts(loads, ranks, spare), ranks, room);
  const bool worse = greedy.highest_load(loads) > balanced.highest_load(loads);
  return worse ? balanced : greedy;
}

ByteMatrix dispatch_bytes(std::span<const std::int64_t> counts, const ExpertPlacement& placement,
                          std::int64_t bytes_per_token) {
  const auto experts = static_cast<std::size_t>(placement.experts());
  if (counts.size() != experts * static_cast<std::size_t>(placement.ranks)) {
    throw UsageError(fmt::format("{} counts instead of {} ranks x {} experts", counts.size(),
                                 placement.ranks, experts));
  }
  if (bytes_per_token < 0) throw UsageError(fmt::format("{} bytes per token", bytes_per_token));
  ByteMatrix bytes(placement.ranks);
  for (int source = 0; source < placement.ranks; ++source) {
    std::int64_t* const row = bytes.row(source);
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const std::int64_t tokens = counts[static_cast<std::size_t>(source) * experts + expert];
      if (tokens < 0) {
        throw UsageError(fmt::format("rank {}, expert {}: {} tokens", source, expert, tokens));
      }
      const std::vector<int>& holders = placement.ranks_of[expert];
      const std::size_t replicas = holders.size();
      const std::int64_t each = tokens / static_cast<std::int64_t>(replicas);
      const std::size_t odd =
          static_cast<std::size_t>(tokens % static_cast<std::int64_t>(replicas));
      for (std::size_t turn = 0; turn < replicas; ++turn) {
        const int holder = holders[(turn + static_cast<std::size_t>(source)) % replicas];
        std::int64_t& cell = row[holder];
        const std::int64_t more = product(each + (turn < odd ? 1 : 0), bytes_per_token);
        if (__builtin_add_overflow(cell, more, &cell)) {
          throw UsageError(fmt::format("rank {} sends too many bytes to rank {}", source, holder));
        }
      }
    }
  }
  return bytes;
}

ByteMatrix transposed(const ByteMatrix& bytes) {
  ByteMatrix result(bytes.ranks());
  for (int source = 0; source < bytes.ranks(); ++source) {
    const std::int64_t* const row = bytes.row(source);
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      result.at(destination, source) = row[destination];
    }
  }
  return result;
}

}  // namespace moesim::cluster
