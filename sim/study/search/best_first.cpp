#include "sim/study/search/best_first.hpp"

#include <algorithm>
#include <cstdint>
#include <queue>
#include <tuple>
#include <utility>

#include "sim/base/parallel.hpp"

namespace moesim::study {
namespace {

// Valued at the same time. A fixed number, so that what is valued does not depend on threads.
constexpr std::size_t batch_size = 16;

struct Entry {
  double figure = 0;
  std::uint32_t candidate = 0;
  bool is_value = false;  // else a bound
};

// The top of the queue is smallest. Of equal figures bounds come first: a candidate of the same
// value that was named earlier may be behind one.
struct Later {
  bool operator()(const Entry& one, const Entry& other) const {
    return std::tie(one.figure, one.is_value, one.candidate) >
           std::tie(other.figure, other.is_value, other.candidate);
  }
};

}  // namespace

BestFirstCounts run_best_first(const BestFirst& search) {
  BestFirstCounts counts;
  std::vector<Entry> entries;
  entries.reserve(search.bounds.size());
  for (const double bound : search.bounds) {
    entries.push_back({bound, static_cast<std::uint32_t>(entries.size()), false});
  }
  std::priority_queue<Entry, std::vector<Entry>, Later> queue(Later(), std::move(entries));
  std::vector<Entry> batch;
  while (!queue.empty()) {
    if (queue.top().is_value) {
      const Entry best = queue.top();
      queue.pop();
      if (!search.accept(best.candidate, best.figure)) return counts;
      continue;
    }
    batch.clear();
    while (!queue.empty() && batch.size() < batch_size && !queue.top().is_value) {
      batch.push_back(queue.top());
      queue.pop();
    }
    std::vector<std::optional<double>> bounds(batch.size());
    std::vector<std::optional<double>> values(batch.size());
    parallel_for(batch.size(), search.jobs, [&](std::size_t at) {
      if (search.tighter) bounds[at] = search.tighter(batch[at].candidate);
      if (!bounds[at]) values[at] = search.value(batch[at].candidate);
    });
    for (const std::optional<double>& bound : bounds) counts.valued += bound ? 0 : 1;
    if (search.progress) search.progress(counts.valued);
    for (std::size_t at = 0; at < batch.size(); ++at) {
      if (bounds[at]) {
        queue.push({std::max(*bounds[at], batch[at].figure), batch[at].candidate, false});
      } else if (values[at]) {
        if (*values[at] < batch[at].figure) ++counts.violations;
        queue.push({*values[at], batch[at].candidate, true});
      }
    }
  }
  return counts;
}

}  // namespace moesim::study
