#include "tools/moesim/recommend/request/requested_machines.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <set>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/study/sweep/grid.hpp"
#include "tools/moesim/bands/run_cost.hpp"

namespace moesim::tool {
namespace {

// Those typed, which differ; an empty one where none is.
std::vector<std::string> typed_values(const CommandLine& line, const std::string& flag) {
  if (!line.has(flag)) return {""};
  std::vector<std::string> values = study::expand("--" + flag, line.get(flag), false);
  std::set<std::string> seen;
  for (const std::string& value : values) {
    if (!seen.insert(value).second) {
      throw UsageError(fmt::format("--{} {}: {} is there twice", flag, line.get(flag), value));
    }
  }
  return values;
}

}  // namespace

std::vector<Machine> requested_machines(const CommandLine& line) {
  const std::vector<std::string> profiles = typed_values(line, "profile");
  const std::vector<std::string> clusters = typed_values(line, "cluster");
  const std::size_t count = profiles.size() * clusters.size();
  const std::vector<std::string> prices = prices_of_each(line, profiles.size(), count);
  std::vector<Machine> machines;
  for (std::size_t at = 0; at < count; ++at) {
    const std::string& profile = profiles[at / clusters.size()];
    const std::string& cluster = clusters[at % clusters.size()];
    Machine machine{profile, line};
    if (clusters.size() > 1) {
      machine.name = profiles.size() > 1 ? fmt::format("{} on {}", profile, cluster) : cluster;
    }
    if (!profile.empty()) machine.typed.values["profile"] = profile;
    if (!cluster.empty()) machine.typed.values["cluster"] = cluster;
    if (!prices.empty()) {
      const std::size_t profile_at = at / clusters.size();
      machine.typed.values["gpu-hour-price"] = prices[prices.size() == 1       ? 0
                                                      : prices.size() == count ? at
                                                                               : profile_at];
    }
    machines.push_back(std::move(machine));
  }
  return machines;
}

}  // namespace moesim::tool
