#include "tools/moesim/profiling/imported_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "sim/base/enum_names.hpp"
#include "sim/routing/traces/trace.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/route/doubtful_logits.hpp"

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
  for (const std::string& doubt : imported_trace.doubts) note(doubt);
  note_trace(folder, imported_trace);
  if (trace.kind() == routing::Trace::Kind::logits) {
    const routing::TraceShape& shape = trace.shape();
    warn_of_logits(folder, trace.logits(0, 0, 0), shape.tokens, shape.experts);
  }
}

}  // namespace moesim::tool
