#include "sim/parallel/layout_rules.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "sim/base/error.hpp"

namespace moesim::parallel {
namespace {

using Fault = std::optional<std::string>;

constexpr std::int64_t most_chunks = 10'000;
constexpr std::int64_t most_gpus = std::int64_t{1} << 30;

std::int64_t attention_ranks(const ParallelLayout& layout) {
  return std::int64_t{layout.tensor} * layout.context * layout.pipeline;
}
std::int64_t expert_ranks(const ParallelLayout& layout) {
  return std::int64_t{layout.expert_tensor} * layout.expert * layout.pipeline;
}
std::int64_t sequences_at_once(const LayoutRequest& request) {
  return request.micro_batch * request.sizes.data();
}

Fault ranks_fault(const ParallelLayout& layout) {
  const std::array<int, 7> sizes{layout.gpus,         layout.tensor,           layout.context,
                                 layout.pipeline,     layout.virtual_pipeline, layout.expert,
                                 layout.expert_tensor};
  if (*std::min_element(sizes.begin(), sizes.end()) < 1) return "a size of a layout is below 1";
  if (layout.gpus % attention_ranks(layout) != 0) {
    return fmt::format(
        "--gpus {} is no multiple of --tensor-parallel {} x --context-parallel {} x "
        "--pipeline-parallel {} = {}",
        layout.gpus, layout.tensor, layout.context, layout.pipeline, attention_ranks(layout));
  }
  if (layout.gpus % expert_ranks(layout) != 0) {
    return fmt::format(
        "--gpus {} is no multiple of --expert-tensor-parallel {} x --expert-parallel {} x "
        "--pipeline-parallel {} = {}",
        layout.gpus, layout.expert_tensor, layout.expert, layout.pipeline, expert_ranks(layout));
  }
  return std::nullopt;
}

Fault chunks_fault(const ParallelLayout& layout) {
  const std::int64_t chunks = std::int64_t{layout.pipeline} * layout.virtual_pipeline;
  if (chunks <= most_chunks) return std::nullopt;
  return fmt::format("--pipeline-parallel {} x --virtual-pipeline {} are more than {} chunks",
                     layout.pipeline, layout.virtual_pipeline, most_chunks);
}

Fault expert_fault(const model::Model& model, const LayoutRequest& request) {
  const ParallelLayout& layout = request.sizes;
  if (!model.moe) {
    if (layout.expert == 1 && layout.expert_tensor == 1 && !request.expert_overlap) return {};
    return fmt::format(
        "{} has no experts: --expert-parallel and --expert-tensor-parallel are 1, and nothing is "
        "overlapped with their exchange",
        model.name);
  }
  if (model.moe->experts % layout.expert != 0) {
    return fmt::format("--expert-parallel {} does not divide the {} experts of {}", layout.expert,
                       model.moe->experts, model.name);
  }
  if (model.moe->expert_ffn % layout.expert_tensor != 0) {
    return fmt::format("--expert-tensor-parallel {} does not divide the inner size {} of an expert",
                       layout.expert_tensor, model.moe->expert_ffn);
  }
  if (layout.tensor > 1 && !request.sequence_parallel) {
    return fmt::format("MoE layers with --tensor-parallel {} need sequence parallelism",
                       layout.tensor);
  }
  return std::nullopt;
}

// Ranks divide whole heads (megatron/core/transformer/transformer_config.py).
Fault linear_attention_fault(const model::Model& model, const LayoutRequest& request) {
  if (!model.linear) return std::nullopt;
  const std::int64_t tensor = request.sizes.tensor;
  const std::int64_t context = request.sizes.context;
  if (model.linear->key_heads % (tensor * context) == 0) return std::nullopt;
  return fmt::format("--tensor-parallel {}{} does not divide the {} key heads of linear attention",
                     tensor, context > 1 ? fmt::format(" x --context-parallel {}", context) : "",
                     model.linear->key_heads);
}

Fault head_fault(const model::Model& model, const LayoutRequest& request) {
  const std::int64_t tensor = request.sizes.tensor;
  const std::int64_t context = request.sizes.context;
  if (model.heads % tensor != 0) {
    return fmt::format("--tensor-parallel {} does not divide the {} attention heads", tensor,
                       model.heads);
  }
  // Latent attention has a key and a value of its own for each head.
  if (model.kv_heads % tensor != 0 && tensor % model.kv_heads != 0) {
    return fmt::format("--tensor-parallel {} and the {} key/value heads: neither divides the other",
                       tensor, model.kv_heads);
  }
  if (Fault fault = linear_attention_fault(model, request)) return fault;
  if (context == 1 || request.context_method != model::ContextMethod::all_to_all)
    return std::nullopt;
  const std::int64_t heads = model.heads / tensor;
  const std::int64_t kv_heads = std::max<std::int64_t>(1, model.kv_heads / tensor);
  if (heads % context == 0 && kv_heads % context == 0) return std::nullopt;
  return fmt::format(
      "--context-method all-to-all divides heads: --context-parallel {} does not divide the {} "
      "heads and {} key/value heads of a rank",
      context, heads, kv_heads);
}

Fault sequence_fault(const LayoutRequest& request) {
  const std::int64_t context = request.sizes.context;
  const std::int64_t tensor = request.sizes.tensor;
  if (context > 1 && request.sequence_length % (2 * context) != 0) {
    return fmt::format(
        "--sequence-length {} does not divide into 2 x --context-parallel = {} pieces, two per "
        "rank for a causal balance",
        request.sequence_length, 2 * context);
  }
  if (tensor > 1 && request.sequence_parallel &&
      (request.sequence_length / context) % tensor != 0) {
    return fmt::format(
        "--tensor-parallel {} does not divide the {} tokens that a rank has of a sequence, as "
        "sequence parallelism needs",
        tensor, request.sequence_length / context);
  }
  return std::nullopt;
}

Fault batch_fault(const LayoutRequest& request) {
  const std::int64_t at_once = sequences_at_once(request);
  if (request.micro_batch < 1 || request.global_batch < 0) return "a batch is below 1";
  if (request.global_batch % at_once != 0) {
    return fmt::format(
        "--global-batch {} is no multiple of --micro-batch {} x data parallel {} = {}",
        request.global_batch, request.micro_batch, request.sizes.data(), at_once);
  }
  if (request.global_batch / at_once > 1'000'000) {
    return fmt::format("--global-batch {} is {} micro-batches: more than 1,000,000",
                       request.global_batch, request.global_batch / at_once);
  }
  return std::nullopt;
}

Fault stage_fault(const model::Model& model, const LayoutRequest& request) {
  const ScheduleShape shape = request.shape();
  const int stages = shape.stages();
  const int ranks = request.sizes.pipeline;
  if (model.encoder_layers > 0 && ranks > 1) {
    return fmt::format("{} has an encoder: --pipeline-parallel divides decoders only", model.name);
  }
  if (!request.stages) {
    if (model.layers % stages == 0) return std::nullopt;
    if (model.layers < stages) {
      return fmt::format("{} layers are fewer than {} pipeline chunks", model.layers, stages);
    }
    return fmt::format(
        "{} layers do not divide evenly over {} pipeline chunks: say which layers each has with "
        "--pipeline-layout, such as '{}'",
        model.layers, stages, nearly_even_pipeline_layout(model.layers, stages).text());
  }
  const auto given = static_cast<int>(request.stages->chunks.size());
  try {
    check_pipeline_layout(*request.stages, model.layers, ranks);
  } catch (const UsageError& error) {
    return error.what();
  }
  if (request.stages->mtp() > model.mtp_depths) {
    return fmt::format(
        "--pipeline-layout has {} 'm', but {} has {} depths of multi-token prediction",
        request.stages->mtp(), model.name, model.mtp_depths);
  }
  if (given == stages) return std::nullopt;
  return fmt::format("--pipeline-layout has {} chunks, but --pipeline-parallel {}{} {}", given,
                     ranks,
                     shape.kind == ScheduleKind::dualpipe_v
                         ? " folded (dualpipe-v)"
                         : fmt::format(" x --virtual-pipeline {}", shape.virtual_stages),
                     stages);
}

Fault overlap_fault(const LayoutRequest& request) {
  if (!request.expert_overlap) return std::nullopt;
  if (request.sizes.expert == 1) {
    return "--ep-overlap hides the exchange of experts: it needs --expert-parallel above 1";
  }
  if (request.stages && request.stages->mtp() > 1) {
    return fmt::format("--ep-overlap allows one depth of multi-token prediction, not {}",
                       request.stages->mtp());
  }
  if (request.recomputes_experts) {
    return "--ep-overlap allows no recomputation of MoE layers, full or of the module moe";
  }
  return std::nullopt;
}

// One option of a request, with the values that are tried in its place.
struct Change {
  std::string option;
  double distance = 0;  // |log2| of new over old
  std::function<void(LayoutRequest&)> apply;
};

std::vector<std::int64_t> divisors(std::int64_t whole) {
  std::vector<std::int64_t> found;
  for (std::int64_t value = 1; value <= std::min<std::int64_t>(whole, 4096); ++value) {
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
  if (request.stages || chunks_fault(request.sizes)) return false;
  LayoutRequest sized = request;
  sized.global_batch = 0;  // which the ranks may not divide
  const int chunks = sized.shape().stages();
  return model.layers % chunks != 0 && model.layers > chunks;
}

Fault any_fault(const model::Model& model, const LayoutRequest& request,
                const FurtherFault& further) {
  Fault fault = layout_fault(model, request);
  return fault || !further ? fault : further(request);
}

// Whether that is all that is wrong: the error then names a pipeline layout that works, and one of
// less than half or more than twice the ranks is no answer.
bool answers_as_uneven_layout(const model::Model& model, const LayoutRequest& request,
                              const FurtherFault& further) {
  if (ranks_fault(request.sizes) || !has_uneven_layers(model, request)) return false;
  LayoutRequest uneven = request;
  uneven.stages = nearly_even_pipeline_layout(model.layers, request.shape().stages());
  return !any_fault(model, uneven, further);
}

// GPUs of a node, nearly everywhere. Tensor ranks beyond one exchange each layer's activations
// between nodes: proposed where nothing else works.
constexpr std::int64_t usual_node = 8;
constexpr double last_resort = 100;  // farther than any ratio of sizes

class Changes {
 public:
  // With `uneven`, layouts whose layers do not divide count too, and say which layers each has.
  Changes(const LayoutRequest& request, const FurtherFault& further, bool uneven)
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
    values.resize(std::min<std::size_t>(values.size(), 12));
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
    const bool is_any_far = farthest == std::numeric_limits<double>::infinity();
    if (found.empty() && is_any_far) found = pairs(model, count);
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
    if (changed.stages) {  // the chunks stay, and are divided over more or fewer ranks
      const auto chunks = static_cast<int>(changed.stages->chunks.size());
      if (chunks % layout.pipeline == 0) layout.virtual_pipeline = chunks / layout.pipeline;
      if (changed.schedule == ScheduleKind::dualpipe_v) layout.virtual_pipeline = 1;
    }
    if (!any_fault(model, changed, further_)) return "";
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
  const FurtherFault& further_;
  bool uneven_;
  std::vector<Change> changes_;
};

// Batches that suit the data parallelism, a schedule's groups, or the least number of
// micro-batches.
void add_batches(const LayoutRequest& request, Changes& changes) {
  changes.add("micro-batch", divisors(request.micro_batch), request.micro_batch,
              [](LayoutRequest& changed, std::int64_t value) { changed.micro_batch = value; });
  if (ranks_fault(request.sizes)) return;
  const std::int64_t unit = sequences_at_once(request);
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

}  // namespace

int LayoutRequest::micro_batches() const {
  if (global_batch == 0) return 4 * sizes.pipeline;
  return static_cast<int>(global_batch / sequences_at_once(*this));
}

std::int64_t LayoutRequest::sequences() const {
  return micro_batch * micro_batches() * sizes.data();
}

ScheduleShape LayoutRequest::shape() const {
  ScheduleShape shape;
  shape.kind = kind();
  shape.ranks = sizes.pipeline;
  shape.virtual_stages = sizes.virtual_pipeline;
  shape.micro_batches = micro_batches();
  shape.group = micro_batch_group;
  shape.expert_overlap = expert_overlap;
  return shape;
}

ScheduleKind LayoutRequest::kind() const {
  return schedule.value_or(sizes.virtual_pipeline > 1 ? ScheduleKind::interleaved
                                                      : ScheduleKind::one_f_one_b);
}

int widest_expert_parallel(const model::Model& model, const ParallelLayout& layout, int domain) {
  if (!model.moe) return 1;
  int widest = 1;
  for (int ranks = 2; ranks <= std::min(domain, model.moe->experts); ++ranks) {
    if (std::int64_t{ranks} * layout.expert_tensor > domain) break;
    const std::int64_t stage = std::int64_t{ranks} * layout.expert_tensor * layout.pipeline;
    if (model.moe->experts % ranks == 0 && layout.gpus % stage == 0) widest = ranks;
  }
  return widest;
}

std::optional<std::string> layout_fault(const model::Model& model, const LayoutRequest& request) {
  if (Fault fault = ranks_fault(request.sizes)) return fault;
  if (Fault fault = chunks_fault(request.sizes)) return fault;
  if (Fault fault = expert_fault(model, request)) return fault;
  if (Fault fault = head_fault(model, request)) return fault;
  if (Fault fault = sequence_fault(request)) return fault;
  if (Fault fault = batch_fault(request)) return fault;
  if (Fault fault = overlap_fault(request)) return fault;
  if (Fault fault = schedule_fault(request.shape())) return fault;
  return stage_fault(model, request);
}

std::vector<std::string> nearest_layouts(const model::Model& model, const LayoutRequest& request,
                                         const FurtherFault& further, std::size_t count) {
  const ParallelLayout& layout = request.sizes;
  const std::vector<std::int64_t> sizes = divisors(layout.gpus);
  const bool is_answered = answers_as_uneven_layout(model, request, further);
  Changes changes(request, further, !is_answered && has_uneven_layers(model, request));
  if (std::max(attention_ranks(layout), expert_ranks(layout)) <= most_gpus) {
    const std::int64_t unit = std::lcm(attention_ranks(layout), expert_ranks(layout));
    changes.add_size("gpus", multiples(unit, layout.gpus), &ParallelLayout::gpus);
  }
  changes.add_size("tensor-parallel", sizes, &ParallelLayout::tensor, usual_node);
  changes.add_size("context-parallel", sizes, &ParallelLayout::context);
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
  const double any = std::numeric_limits<double>::infinity();
  return changes.possible(model, count, is_answered ? 1 : any);
}

void check_layout(const model::Model& model, const LayoutRequest& request,
                  const FurtherFault& further) {
  const Fault fault = any_fault(model, request, further);
  if (!fault) return;
  const std::vector<std::string> near = nearest_layouts(model, request, further);
  throw UsageError(near.empty() ? *fault
                                : fmt::format("{}; nearest layouts that work: {}", *fault,
                                              fmt::join(near, "; ")));
}

PipelineLayout stages_of(const model::Model& model, const LayoutRequest& request) {
  return request.stages ? *request.stages
                        : even_pipeline_layout(model.layers, request.shape().stages());
}

}  // namespace moesim::parallel
