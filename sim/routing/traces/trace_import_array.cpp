#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/base/formats/npz.hpp"
#include "sim/routing/traces/trace_import.hpp"

namespace moesim::routing {

namespace {

[[noreturn]] void refuse(const std::string& file, const std::string& reason) {
  throw UsageError(fmt::format("{}: {}", file, reason));
}

NpyArray array_of(const ArrayQuery& query) {
  if (!query.file.ends_with(".npz")) {
    if (!query.array.empty() || !query.steps.empty()) {
      refuse(query.file, "--array and --steps name arrays of an .npz file, and this is none");
    }
    return NpyArray::load(query.file);
  }
  const NpzArchive archive = NpzArchive::load(query.file);
  if (query.array.empty()) {
    refuse(query.file,
           fmt::format("--array is missing: it holds {}", fmt::join(archive.names(), ", ")));
  }
  return archive.array(query.array);
}

// In the order of a trace. A micro-batch is a step of its own, tokens of a sequence follow each
// other.
enum Axis { step, micro_batch, rank, layer, sequence, token, last };
constexpr std::size_t axis_count = 7;
constexpr std::array<const char*, axis_count> axis_names{"step",     "micro-batch", "rank", "layer",
                                                         "sequence", "token",       "last"};

// An array's lengths and strides in the order of Axis; an absent axis has length 1.
struct View {
  std::array<std::int64_t, axis_count> length{1, 1, 1, 1, 1, 1, 1};
  std::array<std::int64_t, axis_count> stride{};
  std::int64_t steps() const { return length[step] * length[micro_batch]; }
  std::int64_t tokens() const { return length[sequence] * length[token]; }
};

std::vector<std::string> known_axes(const std::string& final_axis) {
  std::vector<std::string> known(axis_names.begin(), axis_names.end() - 1);
  if (final_axis == "expert-count") known = {"step", "micro-batch", "rank", "layer"};
  known.push_back(final_axis == "choice" ? "choice" : "expert");
  return known;
}

// `final_axis`: "expert" of logits, "choice", or "expert-count".
View view_of(const NpyArray& array, const std::vector<std::string>& axes,
             const std::string& final_axis) {
  if (axes.size() != array.shape.size()) {
    refuse(array.name, fmt::format("shape {}, but --axes names {}: [{}]", array.shape_text(),
                                   axes.size(), fmt::join(axes, ", ")));
  }
  const std::vector<std::string> known = known_axes(final_axis);
  const std::string& needed = known.back();
  View view;
  std::vector<std::string> seen;
  std::int64_t inner = 1;
  for (std::size_t at = axes.size(); at-- > 0;) {
    const bool is_known = std::find(known.begin(), known.end(), axes[at]) != known.end();
    if (!is_known || std::find(seen.begin(), seen.end(), axes[at]) != seen.end()) {
      throw UsageError(fmt::format("--axes: '{}': give each of {} at most once, {} always",
                                   axes[at], fmt::join(known, ", "), needed));
    }
    seen.push_back(axes[at]);
    const auto found = std::find(axis_names.begin(), axis_names.end(), axes[at]);
    const auto place = axes[at] == needed ? static_cast<std::size_t>(last)
                                          : static_cast<std::size_t>(found - axis_names.begin());
    view.length[place] = array.shape[at];
    view.stride[place] = inner;
    inner *= array.shape[at];
  }
  if (std::find(seen.begin(), seen.end(), needed) == seen.end()) {
    throw UsageError(fmt::format("--axes: {} is missing", needed));
  }
  if (inner == 0) refuse(array.name, fmt::format("shape {}: no values", array.shape_text()));
  constexpr std::int64_t most = 1 << 24;
  for (std::size_t axis = 0; axis < axis_count; ++axis) {
    if (axis == token || axis == sequence || view.length[axis] <= most) continue;
    refuse(array.name,
           fmt::format("shape {}: at most {} on each axis but token", array.shape_text(), most));
  }
  return view;
}

// The values in the order of a trace.
template <typename Value>
std::vector<Value> ordered(const std::vector<Value>& values, const View& view) {
  std::vector<Value> result;
  result.reserve(values.size());
  std::array<std::int64_t, axis_count> at{};
  while (result.size() < values.size()) {
    std::int64_t place = 0;
    for (std::size_t axis = 0; axis < axis_count; ++axis) place += at[axis] * view.stride[axis];
    result.push_back(values[static_cast<std::size_t>(place)]);
    for (std::size_t axis = axis_count; axis-- > 0;) {
      if (++at[axis] < view.length[axis]) break;
      at[axis] = 0;
    }
  }
  return result;
}

TraceShape shape_of(const View& view, const ArrayQuery& query) {
  TraceShape shape;
  shape.steps = static_cast<int>(view.steps());
  shape.ranks = static_cast<int>(view.length[rank]);
  shape.layers = static_cast<int>(view.length[layer]);
  shape.tokens = view.tokens();
  shape.experts = static_cast<int>(view.length[last]);
  shape.top_k = query.top_k;
  return shape;
}

std::vector<std::int64_t> step_numbers(const ArrayQuery& query, const View& view) {
  std::vector<std::int64_t> steps;
  if (query.steps.empty()) return steps;
  const std::vector<std::int64_t> numbers =
      NpzArchive::load(query.file).array(query.steps).integers();
  if (static_cast<std::int64_t>(numbers.size()) != view.length[step]) {
    refuse(query.file, fmt::format("--steps {}: {} numbers for {} steps", query.steps,
                                   numbers.size(), view.length[step]));
  }
  for (const std::int64_t number : numbers) {
    steps.insert(steps.end(), static_cast<std::size_t>(view.length[micro_batch]), number);
  }
  return steps;
}

std::string description(const char* kind, const std::vector<std::string>& axes, const View& view) {
  std::string text = fmt::format("an array of {} [{}]", kind, fmt::join(axes, ", "));
  if (view.length[micro_batch] > 1) {
    text += fmt::format(", {} micro-batches of a step as steps", view.length[micro_batch]);
  }
  if (view.length[sequence] > 1) {
    text += fmt::format(", {} sequences one after another", view.length[sequence]);
  }
  return text;
}

// What the axes of logits are where nobody says so: as `route --logits` has them.
std::vector<std::string> usual_axes(const NpyArray& array) {
  switch (array.shape.size()) {
    case 2:
      return {"token", "expert"};
    case 3:
      return {"rank", "token", "expert"};
    case 4:
      return {"rank", "layer", "token", "expert"};
    default:
      refuse(array.name, fmt::format("shape {}: --axes is missing: what the axes of these logits "
                                     "are, in order: some of {}",
                                     array.shape_text(), fmt::join(known_axes("expert"), ", ")));
  }
}

ImportedTrace logits_of(const ArrayQuery& query, const NpyArray& array) {
  const std::vector<std::string> axes = query.axes.empty() ? usual_axes(array) : query.axes;
  const View view = view_of(array, axes, "expert");
  const auto has = [&](const char* axis) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
  };
  if (!has("token") && !has("sequence")) {
    throw UsageError(fmt::format(
        "--axes: token is missing: {} holds floating-point numbers, which are logits of tokens; "
        "counts of experts are whole numbers: save them so (NumPy: array.astype(int))",
        array.name));
  }
  const TraceShape shape = shape_of(view, query);
  if (shape.top_k > shape.experts) {
    refuse(array.name,
           fmt::format("--top-k: {} experts per token of {}", shape.top_k, shape.experts));
  }
  const std::vector<float> values = query.bfloat16_bits ? array.bfloat16_bits() : array.floating();
  std::string what = description("logits", axes, view);
  if (array.dtype == "<f8") what += ", float64 rounded to float32";
  return {Trace::of_logits(array.name, shape, ordered(values, view)),
          step_numbers(query, view),
          {},
          what};
}

ImportedTrace choices_of(const ArrayQuery& query, const NpyArray& array) {
  const View view = view_of(array, query.axes, "choice");
  TraceShape shape = shape_of(view, query);
  shape.top_k = static_cast<int>(view.length[last]);
  if (query.top_k > 0 && query.top_k != shape.top_k) {
    refuse(array.name, fmt::format("shape {}: {} choices per token, but --top-k says {}",
                                   array.shape_text(), shape.top_k, query.top_k));
  }
  if (query.experts < 1) {
    throw UsageError("--experts is missing: an array of choices does not say how many there are");
  }
  shape.experts = query.experts;
  const std::vector<std::int64_t> numbers = ordered(array.integers(), view);
  std::vector<std::uint16_t> experts;
  experts.reserve(numbers.size());
  for (const std::int64_t number : numbers) {
    if (number < 0 || number >= query.experts) {
      refuse(array.name, fmt::format("no expert {}: --experts {} are 0 to {}", number,
                                     query.experts, query.experts - 1));
    }
    experts.push_back(static_cast<std::uint16_t>(number));
  }
  return {Trace::of_choices(array.name, shape, std::move(experts), {}),
          step_numbers(query, view),
          {},
          description("choices", query.axes, view)};
}

ImportedTrace counts_of(const ArrayQuery& query, const NpyArray& array) {
  if (query.axes.empty()) {
    throw UsageError(fmt::format(
        "--axes is missing: what the axes of {} are, in order: whole numbers are counts (some of "
        "{}) or, with an axis choice, each token's experts; logits are floating point",
        array.name, fmt::join(known_axes("expert-count"), ", ")));
  }
  const std::vector<std::int64_t> values = array.integers();
  const View view = view_of(array, query.axes, "expert-count");
  return {trace_of_counts(array.name, shape_of(view, query), ordered(values, view)),
          step_numbers(query, view),
          {},
          description("counts", query.axes, view)};
}

}  // namespace

std::shared_ptr<const Trace> trace_of_counts(const std::string& file, TraceShape shape,
                                             std::vector<std::int64_t> counts,
                                             const std::string& first_counts) {
  if (shape.top_k < 1 || shape.top_k > shape.experts) {
    refuse(file, fmt::format("--top-k: {} experts per token of {}", shape.top_k, shape.experts));
  }
  const auto first = counts.begin();
  for (auto count = first; count != first + shape.experts; ++count) {
    if (*count >= 0 && *count <= Trace::most_tokens) continue;
    refuse(file, fmt::format("a count of {}: they are 0 to {}", *count, Trace::most_tokens));
  }
  const std::int64_t routes = std::accumulate(first, first + shape.experts, std::int64_t{0});
  if (routes % shape.top_k != 0 || routes == 0) {
    refuse(file, fmt::format("{} add up to {}, which is no number of tokens of --top-k {} each: "
                             "another --top-k, routes that were dropped, or tokens of padding?",
                             first_counts, routes, shape.top_k));
  }
  shape.tokens = routes / shape.top_k;
  return Trace::of_counts(file, shape, std::move(counts));
}

ImportedTrace import_array(const ArrayQuery& query) {
  const NpyArray array = array_of(query);
  const auto choice = std::find(query.axes.begin(), query.axes.end(), "choice");
  const bool has_choices = choice != query.axes.end() && !array.is_floating();
  if (query.top_k < 1 && !has_choices) {
    throw UsageError("--top-k is missing: how many experts each token was sent to");
  }
  if (query.bfloat16_bits || array.is_floating()) return logits_of(query, array);
  return has_choices ? choices_of(query, array) : counts_of(query, array);
}

}  // namespace moesim::routing
