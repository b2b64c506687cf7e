#include "sim/parallel/nearest_layouts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::parallel {
namespace {

using Refusal = std::optional<std::string>;

constexpr std::int64_t most_gpus = std::int64_t{1} << 30;
constexpr std::int64_t largest_divisor = 4096;
constexpr std::size_t values_of_option = 12;  // that are tried in the place of one
constexpr double anywhere = std::numeric_limits<double>::infinity();

// A request with another value of one option.
struct Change {
  std::string option;
  double distance = 0;  // |log2| of new over old
  std::function<void(LayoutRequest&)> apply;
};

std::vector<std::int64_t> divisors(std::int64_t whole) {
  std::vector<std::int64_t> found;
  for (std::int64_t value = 1; value <= std::min<std::int64_t>(whole, largest_divisor); ++value) {
    if (whole % value == 0) found.push_back(value);
  }
  return found;
}

// The multiples of `unit` on both sides of `value`.
std::vector<std::int64_t> multiples(std::int64_t unit, std::int64_t value) {
  const std::int64_t below = value / unit * unit;
  std::vector<std::int64_t> found{below + unit};
  if (below > 0) found.insert(found.begin(), below);
  return found;
}

// Whether the layers do not divide over the chunks, of which each can have one.
bool has_uneven_layers(const model::Model& model, const LayoutRequest& request) {
  if (request.stages || chunks_refusal(request.sizes)) return false;
  LayoutRequest sized = request;
  sized.global_batch = 0;  // which the ranks may not divide
  const int chunks = sized.shape().stages();
  return model.layers % chunks != 0 && model.layers > chunks;
}

Refusal any_refusal(const model::Model& model, const LayoutRequest& request,
                    const FurtherRefusal& further) {
  Refusal refusal = layout_refusal(model, request);
  return refusal || !further ? refusal : further(request);
}

// Whether that is all that is wrong: the error then names a pipeline layout that works, and one of
// less than half or more than twice the ranks is no answer.
bool answers_as_uneven_layout(const model::Model& model, const LayoutRequest& request,
                              const FurtherRefusal& further) {
  if (ranks_refusal(request.sizes) || !has_uneven_layers(model, request)) return false;
  LayoutRequest uneven = request;
  uneven.stages = nearly_even_pipeline_layout(model.layers, request.shape().stages());
  return !any_refusal(model, uneven, further);
}

// GPUs of a node, nearly everywhere. Tensor ranks beyond one exchange each layer's activations
// between nodes: proposed where nothing else works.
constexpr std::int64_t usual_node = 8;
constexpr double last_resort = 100;  // farther than any ratio of sizes

class Changes {
 public:
  // With `uneven`, layouts whose layers do not divide count too, and say which layers each has.
  Changes(const LayoutRequest& request, const FurtherRefusal& further, bool uneven)
      : request_(request), further_(further), uneven_(uneven) {}

  // The nearest values of an option but the old one; `set` changes the field to one of them. Values
  // above `most_usual` come last, unless the old one is above it.
  void add(const char* option, std::vector<std::int64_t> values, std::int64_t old,
           const std::function<void(LayoutRequest&, std::int64_t)>& set,
           std::int64_t most_usual = most_gpus) {
    const auto distance = [old](std::int64_t value) {
      return std::abs(std::log2(static_cast<double>(value) / static_cast<double>(old)));
    };
    std::stable_sort(values.begin(), values.end(), [&](std::int64_t one, std::int64_t other) {
      return distance(one) < distance(other);
    });
    values.erase(std::remove(values.begin(), values.end(), old), values.end());
    values.resize(std::min<std::size_t>(values.size(), values_of_option));
    for (const std::int64_t value : values) {
      if (value > most_gpus) continue;
      const double more = value > std::max(most_usual, old) ? last_resort : 0;
      changes_.push_back({fmt::format("--{} {}", option, value), distance(value) + more,
                          [set, value](LayoutRequest& changed) { set(changed, value); }});
    }
  }
  void add_size(const char* option, const std::vector<std::int64_t>& values,
                int ParallelLayout::*size, std::int64_t most_usual = most_gpus) {
    add(
        option, values, request_.sizes.*size,
        [size](LayoutRequest& changed, std::int64_t value) {
          changed.sizes.*size = static_cast<int>(value);
        },
        most_usual);
  }

  // The other value of a switch, before values of sizes.
  void add_switch(const char* option, bool LayoutRequest::*field) {
    const bool other = !(request_.*field);
    changes_.push_back({fmt::format("--{} {}", option, other ? "on" : "off"), 0,
                        [field, other](LayoutRequest& changed) { changed.*field = other; }});
  }

  // The nearest ones that can be, as words, those that keep the GPUs first; pairs of them where no
  // single one is enough. With `farthest`, the distance of the last one, single ones only.
  std::vector<std::string> possible(const model::Model& model, std::size_t count, double farthest) {
    std::stable_sort(changes_.begin(), changes_.end(), [](const Change& one, const Change& other) {
      return one.distance < other.distance;
    });
    std::vector<std::string> found;
    for (const Change& change : changes_) {
      if (change.distance > farthest) break;
      const bool is_full = found.size() == count;
      // The GPUs are what one has: one layout of them is named where it is not far.
      if (is_full && (change.distance > 1 || std::any_of(found.begin(), found.end(), keeps_gpus))) {
        break;
      }
      if (is_full && !keeps_gpus(change.option)) continue;
      const auto rest = layout_of(model, {&change});
      if (!rest) continue;
      if (is_full) found.pop_back();
      found.push_back(change.option + *rest);
    }
    if (found.empty() && farthest == anywhere) found = pairs(model, count);
    std::stable_partition(found.begin(), found.end(), keeps_gpus);
    return found;
  }

 private:
  static bool keeps_gpus(const std::string& words) {
    return words.find("--gpus ") == std::string::npos;
  }

  // What the changed request needs beside the changes, "" or a pipeline layout; none where it
  // cannot be.
  std::optional<std::string> layout_of(const model::Model& model,
                                       std::initializer_list<const Change*> changes) const {
    LayoutRequest changed = request_;
    for (const Change* change : changes) change->apply(changed);
    ParallelLayout& layout = changed.sizes;
    if (request_.expert_domain > 0 && layout.expert == request_.sizes.expert) {
      layout.expert = widest_expert_parallel(model, layout, request_.expert_domain);
    }
    std::string rest;
    if (changed.stages && layout.pipeline != request_.sizes.pipeline) {
      // The chunks stay, and are divided over more or fewer ranks.
      const auto chunks = static_cast<int>(changed.stages->chunks.size());
      if (chunks % layout.pipeline == 0) layout.virtual_pipeline = chunks / layout.pipeline;
      if (changed.schedule == ScheduleKind::dualpipe_v) layout.virtual_pipeline = 1;
      if (layout.virtual_pipeline != request_.sizes.virtual_pipeline) {
        rest = fmt::format(" --virtual-pipeline {}", layout.virtual_pipeline);
      }
    }
    if (!any_refusal(model, changed, further_)) return rest;
    if (!uneven_ || !answers_as_uneven_layout(model, changed, further_)) return std::nullopt;
    return fmt::format(" --pipeline-layout '{}'",
                       nearly_even_pipeline_layout(model.layers, changed.shape().stages()).text());
  }

  std::vector<std::string> pairs(const model::Model& model, std::size_t count) const {
    std::vector<std::pair<double, std::string>> found;
    for (std::size_t one = 0; one < changes_.size(); ++one) {
      for (std::size_t other = one + 1; other < changes_.size(); ++other) {
        const Change& first = changes_[one];
        const Change& second = changes_[other];
        const auto option = [](const Change& change) {
          return change.option.substr(0, change.option.find(' '));
        };
        if (option(first) == option(second)) continue;
        const auto rest = layout_of(model, {&first, &second});
        if (!rest) continue;
        found.emplace_back(first.distance + second.distance,
                           fmt::format("{} {}{}", first.option, second.option, *rest));
      }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& one, const auto& other) { return one.first < other.first; });
    std::vector<std::string> words;
    for (std::size_t at = 0; at < std::min(count, found.size()); ++at) {
      words.push_back(found[at].second);
    }
    return words;
  }

  const LayoutRequest& request_;
  const FurtherRefusal& further_;
  bool uneven_;
  std::vector<Change> changes_;
};

// Batches that suit the data parallelism, a schedule's groups, or the least number of
// micro-batches.
void add_batches(const LayoutRequest& request, Changes& changes) {
  changes.add("micro-batch", divisors(request.micro_batch), request.micro_batch,
              [](LayoutRequest& changed, std::int64_t value) { changed.micro_batch = value; });
  if (ranks_refusal(request.sizes)) return;
  const std::int64_t unit = request.sequences_at_once();
  std::vector<std::int64_t> batches = multiples(unit, request.global_batch);
  for (const std::int64_t times : {2, request.shape().group_size(), 2 * request.sizes.pipeline}) {
    const std::vector<std::int64_t> more = multiples(unit * times, request.global_batch);
    batches.insert(batches.end(), more.begin(), more.end());
  }
  std::sort(batches.begin(), batches.end());
  batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
  changes.add("global-batch", batches, request.global_batch,
              [](LayoutRequest& changed, std::int64_t value) { changed.global_batch = value; });
}

// Groups of micro-batches, of which all are full: as many as PP, the default, or more.
void add_groups(const LayoutRequest& request, Changes& changes) {
  if (request.micro_batch_group == 0 || request.kind() != ScheduleKind::interleaved) return;
  std::vector<std::int64_t> groups{request.sizes.pipeline};
  if (!ranks_refusal(request.sizes)) {
    for (const std::int64_t group : divisors(request.micro_batches())) {
      if (group > request.sizes.pipeline) groups.push_back(group);
    }
  }
  changes.add("micro-batch-group", groups, request.micro_batch_group,
              [](LayoutRequest& changed, std::int64_t value) {
                changed.micro_batch_group = static_cast<int>(value);
              });
}

}  // namespace

std::vector<std::string> nearest_layouts(const model::Model& model, const LayoutRequest& request,
                                         const FurtherRefusal& further, std::size_t count) {
  const ParallelLayout& layout = request.sizes;
  const std::vector<std::int64_t> sizes = divisors(layout.gpus);
  const bool is_answered = answers_as_uneven_layout(model, request, further);
  Changes changes(request, further, !is_answered && has_uneven_layers(model, request));
  if (std::max(layout.attention_ranks(), layout.expert_ranks()) <= most_gpus) {
    const std::int64_t unit = std::lcm(layout.attention_ranks(), layout.expert_ranks());
    changes.add_size("gpus", multiples(unit, layout.gpus), &ParallelLayout::gpus);
  }
  if (!request.sequence_parallel && layout.tensor > 1) {
    changes.add_switch("sequence-parallel", &LayoutRequest::sequence_parallel);
  }
  add_groups(request, changes);
  changes.add_size("tensor-parallel", sizes, &ParallelLayout::tensor, usual_node);
  changes.add_size("context-parallel", sizes, &ParallelLayout::context);
  if (request.stages && request.schedule != ScheduleKind::dualpipe_v) {
    const auto chunks = static_cast<std::int64_t>(request.stages->chunks.size());
    if (layout.pipeline > 0 && chunks % layout.pipeline == 0) {
      changes.add_size("virtual-pipeline", {chunks / layout.pipeline},
                       &ParallelLayout::virtual_pipeline);
    }
  }
  changes.add_size("pipeline-parallel", sizes, &ParallelLayout::pipeline);
  if (layout.virtual_pipeline > 1 && !request.stages) {
    changes.add_size("virtual-pipeline", {2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16},
                     &ParallelLayout::virtual_pipeline);
  }
  if (model.moe) {
    changes.add_size("expert-parallel", sizes, &ParallelLayout::expert);
    changes.add_size("expert-tensor-parallel", sizes, &ParallelLayout::expert_tensor, usual_node);
  }
  if (request.global_batch > 0) add_batches(request, changes);
  return changes.possible(model, count, is_answered ? 1 : anywhere);
}

void check_layout(const model::Model& model, const LayoutRequest& request,
                  const FurtherRefusal& further) {
  const Refusal refusal = any_refusal(model, request, further);
  if (!refusal) return;
  const std::vector<std::string> near = nearest_layouts(model, request, further);
  throw UsageError(near.empty() ? *refusal
                                : fmt::format("{}; nearest layouts that work: {}", *refusal,
                                              fmt::join(near, "; ")));
}

}  // namespace moesim::parallel
