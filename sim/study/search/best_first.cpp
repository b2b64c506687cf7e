#include "sim/study/search/best_first.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
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

// The first of a heap is smallest. Of equal figures bounds come first: a candidate of the same
// value that was named earlier may be behind one.
struct Later {
  bool operator()(const Entry& one, const Entry& other) const {
    return std::tie(one.figure, one.is_value, one.candidate) >
           std::tie(other.figure, other.is_value, other.candidate);
  }
};

class Run {
 public:
  explicit Run(const BestFirst& search) : search_(search) {
    heap_.reserve(search.bounds.size());
    for (const double bound : search.bounds) {
      heap_.push_back({bound, static_cast<std::uint32_t>(heap_.size()), false});
    }
    std::make_heap(heap_.begin(), heap_.end(), Later());
  }

  BestFirstCounts run() {
    while (!heap_.empty()) {
      if (is_stopped()) {
        accept_unproven();
        break;
      }
      if (!heap_.front().is_value) {
        value_next();
      } else if (const Entry best = pop(); !search_.accept(best.candidate, best.figure)) {
        break;
      }
    }
    return counts_;
  }

 private:
  bool is_stopped() const { return search_.stop && search_.stop(); }

  void push(const Entry& entry) {
    heap_.push_back(entry);
    std::push_heap(heap_.begin(), heap_.end(), Later());
  }
  Entry pop() {
    std::pop_heap(heap_.begin(), heap_.end(), Later());
    const Entry first = heap_.back();
    heap_.pop_back();
    return first;
  }

  // The candidates with the least bounds, or tightens these.
  void value_next() {
    std::vector<Entry> batch;
    while (!heap_.empty() && batch.size() < batch_size && !heap_.front().is_value) {
      batch.push_back(pop());
    }
    std::vector<std::optional<double>> bounds(batch.size());
    std::vector<std::optional<double>> values(batch.size());
    parallel_for(batch.size(), search_.jobs, [&](std::size_t at) {
      if (is_stopped()) {
        bounds[at] = batch[at].figure;
        return;
      }
      if (search_.tighter) bounds[at] = search_.tighter(batch[at].candidate);
      if (!bounds[at]) values[at] = search_.value(batch[at].candidate);
    });
    for (const std::optional<double>& bound : bounds) counts_.valued += bound ? 0 : 1;
    if (search_.progress) search_.progress(counts_.valued);
    for (std::size_t at = 0; at < batch.size(); ++at) {
      if (bounds[at]) {
        push({std::max(*bounds[at], batch[at].figure), batch[at].candidate, false});
      } else if (values[at]) {
        if (*values[at] < batch[at].figure) ++counts_.violations;
        push({*values[at], batch[at].candidate, true});
      }
    }
  }

  void accept_unproven() {
    counts_.stopped = true;
    std::vector<Entry> values;
    for (const Entry& entry : heap_) {
      if (entry.is_value) values.push_back(entry);
    }
    const std::vector<Entry> quick = quick_ones();
    std::vector<std::optional<double>> found(quick.size());
    std::atomic<std::size_t> valued{0};
    parallel_for(quick.size(), search_.jobs, [&](std::size_t at) {
      if (search_.give_up && search_.give_up()) return;
      found[at] = search_.value(quick[at].candidate);
      ++valued;
    });
    counts_.valued += valued;
    for (std::size_t at = 0; at < quick.size(); ++at) {
      if (found[at]) values.push_back({*found[at], quick[at].candidate, true});
    }
    std::sort(values.begin(), values.end(),
              [](const Entry& one, const Entry& other) { return Later()(other, one); });
    for (const Entry& each : values) {
      if (!search_.accept(each.candidate, each.figure)) break;
    }
  }

  std::vector<Entry> quick_ones() const {
    std::vector<Entry> quick;
    if (!search_.is_quick) return quick;
    for (const Entry& entry : heap_) {
      if (!entry.is_value && search_.is_quick(entry.candidate)) quick.push_back(entry);
    }
    const std::size_t count = std::min(quick.size(), BestFirst::most_quick);
    std::partial_sort(quick.begin(), quick.begin() + static_cast<std::ptrdiff_t>(count),
                      quick.end(),
                      [](const Entry& one, const Entry& other) { return Later()(other, one); });
    quick.resize(count);
    return quick;
  }

  const BestFirst& search_;
  std::vector<Entry> heap_;
  BestFirstCounts counts_;
};

}  // namespace

BestFirstCounts run_best_first(const BestFirst& search) { return Run(search).run(); }

}  // namespace moesim::study
