#include "tools/moesim/profiling/imported_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <span>

#include "sim/base/enum_names.hpp"
#include "sim/routing/traces/trace.hpp"
#include "tools/moesim/output.hpp"

namespace moesim::tool {
namespace {

using routing::ImportedTrace;

std::string origin(const CommandLine& line) {
  const std::vector<std::string>& origins = trace_origins();
  std::string text = line.get("origin", "not stated");
  const bool is_known = std::find(origins.begin(), origins.end(), text) != origins.end();
  if (is_known || text == "not stated") return text;
  refuse_name("--origin", text, origins);
}

// What the new trace holds, and what to do with it. Experts, GPUs, tokens and layers are the
// trace's own.
void note_trace(const std::string& folder, const ImportedTrace& made) {
  const routing::Trace& trace = *made.trace;
  const routing::TraceShape& shape = trace.shape();
  const bool per_rank = trace.per() == routing::Trace::Per::rank;
  const char* const kind = trace.kind() == routing::Trace::Kind::logits    ? "logits"
                           : trace.kind() == routing::Trace::Kind::choices ? "choices"
                                                                           : "counts";
  note(fmt::format("{}: {} of {} steps, {} ranks, {} layers, {} {}, {} tokens per rank", folder,
                   kind, shape.steps, shape.ranks, shape.layers, shape.experts,
                   per_rank ? "receiving ranks" : "experts", shape.tokens));
  note(fmt::format("read as {}", made.what));
  std::string priority;
  if (trace.kind() == routing::Trace::Kind::choices && !trace.has_probabilities()) {
    priority = " --priority position";
  }
  note(
      fmt::format("try: moesim route --routing trace:{} --router topk --top-k {}{} --gpus {} "
                  "--replicas {}",
                  folder, shape.top_k, priority, shape.ranks, shape.steps));
}

// Whether each token's values are those of a softmax: within 0..1 and adding up to 1.
bool are_probabilities(const routing::Trace& trace) {
  const auto experts = static_cast<std::size_t>(trace.shape().experts);
  const std::span<const float> values = trace.logits(0, 0, 0);
  for (std::size_t first = 0; first < values.size(); first += experts) {
    double sum = 0;
    for (const float value : values.subspan(first, experts)) {
      if (value < 0 || value > 1) return false;
      sum += value;
    }
    if (std::abs(sum - 1) > 0.01) return false;
  }
  return true;
}

// Whether all values are whole, none below 0 and some above 1, as of counts.
bool are_whole(const routing::Trace& trace) {
  const std::span<const float> values = trace.logits(0, 0, 0);
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return value >= 0 && std::trunc(value) == value; }) &&
         std::any_of(values.begin(), values.end(), [](float value) { return value > 1; });
}

// What logits are not likely to be.
void warn_of_logits(const std::string& folder, const routing::Trace& trace) {
  if (trace.kind() != routing::Trace::Kind::logits) return;
  const routing::TraceShape& shape = trace.shape();
  constexpr int most_experts_known = 1024;
  if (shape.experts > most_experts_known && shape.experts > shape.tokens) {
    note(
        fmt::format("warning: {}: {} experts for {} tokens: are the axes swapped? The last one is "
                    "the expert; numpy.ascontiguousarray(array.T) swaps two",
                    folder, shape.experts, shape.tokens));
  }
  if (are_whole(trace)) {
    note(
        fmt::format("warning: {}: all values are whole numbers, as counts are, but taken for "
                    "logits, as floating-point numbers are: save counts as whole numbers (NumPy: "
                    "array.astype(int))",
                    folder));
  }
  if (are_probabilities(trace)) {
    note(fmt::format(
        "warning: {}: each token's values add up to 1, as after a softmax; they are "
        "taken for logits, and a softmax follows, which makes all experts nearly alike: "
        "give the router's output before the softmax, or log(probabilities)",
        folder));
  }
}

}  // namespace

const std::vector<std::string>& trace_origins() {
  static const std::vector<std::string> origins{"measured", "published", "synthetic"};
  return origins;
}

void write_imported_trace(const CommandLine& line, const std::string& folder,
                          const routing::ImportedTrace& imported_trace) {
  const routing::Trace& trace = *imported_trace.trace;
  std::string name = std::filesystem::path(folder).filename().string();
  if (name.empty()) name = "trace";
  std::vector<std::string> files;
  for (const std::string& file : line.positionals) {
    files.push_back(std::filesystem::path(file).filename().string());
  }
  const std::string from = files.size() == 1
                               ? files.front()
                               : fmt::format("{} and {} more", files.front(), files.size() - 1);
  routing::write_trace(
      folder, trace,
      {line.get("name", name), line.get("model", "not stated"), line.get("source", "file " + from),
       line.get("licence", "not stated"), origin(line),
       fmt::format("imported from {}: {}", from, imported_trace.what), imported_trace.steps,
       imported_trace.layers});
  note_trace(folder, imported_trace);
  warn_of_logits(folder, trace);
}

}  // namespace moesim::tool
