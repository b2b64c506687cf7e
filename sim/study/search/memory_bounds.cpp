#include "sim/study/search/memory_bounds.hpp"

#include <algorithm>
#include <optional>
#include <tuple>

#include "sim/base/parallel.hpp"
#include "sim/study/search/balanced_job.hpp"
#include "sim/training/step/step_bound.hpp"

namespace moesim::study {
namespace {

using training::TrainingJob;

// All of a job's routing that its memory depends on, without a draw.
struct RoutedMemory {
  int choices = 0;       // per token
  int held_experts = 0;  // of all ranks, with copies
  double rows = 0;       // of the busiest rank over balance

  explicit RoutedMemory(const TrainingJob& job)
      : choices(job.experts_per_token()), held_experts(job.held_experts()) {
    rows = job.capacity_factor > 0 ? job.capacity_factor : training::forced_load(job).computed;
  }
  bool operator==(const RoutedMemory&) const = default;
  bool takes_no_more_than(const RoutedMemory& other) const {
    return choices == other.choices && held_experts == other.held_experts && rows <= other.rows;
  }
};

struct Routed {
  std::size_t family = 0;
  RoutedMemory memory;
};

class MemoryBounds {
 public:
  MemoryBounds(const std::vector<TrainingFamily>& families, double room, bool is_exact)
      : families_(families), room_(room), is_exact_(is_exact), found_(families.size()) {}

  // Bounds the families from `first` on that share its layouts.
  void bound_group(std::size_t first) {
    std::vector<std::vector<Routed>> alike;  // but for routing
    for (std::size_t at = first; at < families_.size(); ++at) {
      const TrainingFamily& family = families_[at];
      if (!family.shares_layouts(families_[first])) break;
      const Routed routed{at, RoutedMemory(BalancedJob(family.first()).job)};
      const auto same =
          std::find_if(alike.begin(), alike.end(), [&](const std::vector<Routed>& others) {
            return families_[others.front().family].differs_in_routing_alone(family);
          });
      if (same == alike.end()) {
        alike.push_back({routed});
      } else {
        same->push_back(routed);
      }
    }
    for (std::vector<Routed>& each : alike) bound_alike(each);
  }

  std::vector<std::vector<Bytes>> found() { return std::move(found_); }

 private:
  void bound_alike(std::vector<Routed>& alike) {
    std::stable_sort(alike.begin(), alike.end(), [](const Routed& one, const Routed& other) {
      const auto key = [](const Routed& routed) {
        return std::tie(routed.memory.choices, routed.memory.held_experts, routed.memory.rows);
      };
      return key(one) < key(other);
    });
    for (std::size_t at = 0; at < alike.size(); ++at) {
      const Routed* const fewer = at > 0 ? &alike[at - 1] : nullptr;
      const TrainingFamily& family = families_[alike[at].family];
      std::vector<Bytes>& bounds = found_[alike[at].family];
      for (std::size_t job = 0; job < family.size(); ++job) {
        std::optional<Bytes> known;
        if (fewer != nullptr) known = known_by(*fewer, alike[at].memory, job);
        bounds.push_back(known ? *known : training::memory_bound(BalancedJob(family.job(job)).job));
      }
    }
  }

  std::optional<Bytes> known_by(const Routed& fewer, const RoutedMemory& memory,
                                std::size_t job) const {
    const Bytes bound = found_[fewer.family][job];
    const bool is_too_large = static_cast<double>(bound.count) > room_;
    const bool is_known = fewer.memory == memory ||
                          (!is_exact_ && is_too_large && fewer.memory.takes_no_more_than(memory));
    return is_known ? std::optional(bound) : std::nullopt;
  }

  const std::vector<TrainingFamily>& families_;
  double room_;
  bool is_exact_;
  std::vector<std::vector<Bytes>> found_;
};

// The first family of those that share their layouts.
std::vector<std::size_t> groups_of(const std::vector<TrainingFamily>& families) {
  std::vector<std::size_t> first;
  for (std::size_t at = 0; at < families.size(); ++at) {
    if (first.empty() || !families[first.back()].shares_layouts(families[at])) first.push_back(at);
  }
  return first;
}

}  // namespace

std::vector<std::vector<Bytes>> memory_bounds(const std::vector<TrainingFamily>& families,
                                              double room, int jobs,
                                              const std::function<void()>& before_each) {
  const std::vector<std::size_t> groups = groups_of(families);
  const auto bound = [&](bool is_exact) {
    MemoryBounds bounds(families, room, is_exact);
    parallel_for(groups.size(), jobs, [&](std::size_t at) {
      if (before_each) before_each();
      bounds.bound_group(groups[at]);
    });
    return bounds.found();
  };
  std::vector<std::vector<Bytes>> found = bound(false);
  const bool any_fits = std::any_of(found.begin(), found.end(), [&](const auto& of_family) {
    return std::any_of(of_family.begin(), of_family.end(),
                       [&](Bytes memory) { return static_cast<double>(memory.count) <= room; });
  });
  return any_fits ? found : bound(true);
}

}  // namespace moesim::study
