#include "tools/moesim/recommend/request/requested_gpus.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <set>
#include <string>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/study/sweep/grid.hpp"

namespace moesim::tool {
namespace {

constexpr std::size_t most_searches = 64;

}  // namespace

std::vector<int> requested_gpus(const CommandLine& line) {
  std::set<int> numbers;
  if (!line.has("gpus")) return {};
  for (const std::string& text : study::expand("--gpus", line.get("gpus"), true)) {
    numbers.insert(static_cast<int>(parse_whole("--gpus", text, 1, cluster::most_gpus)));
  }
  if (numbers.size() > most_searches) {
    throw UsageError(fmt::format("--gpus: {} numbers, each with a search of its own: at most {}",
                                 numbers.size(), most_searches));
  }
  return {numbers.begin(), numbers.end()};
}

}  // namespace moesim::tool
