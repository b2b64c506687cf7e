#include "tools/moesim/profiling/import_trace.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "sim/routing/traces/trace_import.hpp"
#include "tools/moesim/profiling/import_flags.hpp"
#include "tools/moesim/profiling/imported_trace.hpp"

namespace moesim::tool {
namespace {

using routing::ImportedTrace;

std::vector<std::string> parts(const std::string& text) {
  const std::vector<std::string_view> found = split(text, ',');
  return {found.begin(), found.end()};
}

ImportedTrace from_table(const CommandLine& line) {
  refuse_other_flags(line, "a table of counts (.csv)", with_trace_flags({"where", "experts"}));
  routing::CountTableQuery query;
  query.file = line.positionals.front();
  query.experts =
      needed_whole(line, "experts", 65534, "a table need not list an expert without tokens");
  query.top_k = needed_top_k(line);
  if (line.has("where")) {
    for (const std::string& condition : parts(line.get("where"))) {
      const std::size_t equals = condition.find('=');
      if (equals == std::string::npos || equals == 0) {
        throw UsageError(fmt::format(
            "--where: '{}' is not of the form COLUMN=VALUE, such as domain=c4,layer=0", condition));
      }
      query.where.emplace_back(condition.substr(0, equals), condition.substr(equals + 1));
    }
  }
  return routing::import_count_table(query);
}

ImportedTrace from_array(const CommandLine& line) {
  refuse_other_flags(line, "an array (.npy, .npz)",
                     with_trace_flags({"array", "axes", "steps", "experts", "dtype"}));
  routing::ArrayQuery query;
  query.file = line.positionals.front();
  query.array = line.get("array");
  if (line.has("axes")) query.axes = parts(line.get("axes"));
  query.steps = line.get("steps");
  if (line.has("experts")) query.experts = needed_whole(line, "experts", 65534, "");
  if (line.has("top-k")) query.top_k = needed_top_k(line);
  if (line.has("dtype") && line.get("dtype") != "bfloat16") {
    throw UsageError(
        fmt::format("--dtype: '{}': only bfloat16, of 16-bit integers, is not in the file itself",
                    line.get("dtype")));
  }
  query.bfloat16_bits = line.has("dtype");
  return routing::import_array(query);
}

ImportedTrace from_route_logs(const CommandLine& line) {
  refuse_other_flags(line, "route logs (.jsonl)", with_trace_flags({"experts", "tokens"}));
  routing::RouteLogQuery query;
  query.files = line.positionals;
  query.experts = needed_whole(line, "experts", 65534, "a log does not say how many there are");
  if (line.has("top-k")) query.top_k = needed_top_k(line);
  constexpr std::int64_t most = std::int64_t{1} << 31;
  if (line.has("tokens")) query.tokens = parse_whole("--tokens", line.get("tokens"), 1, most);
  return routing::import_route_logs(query);
}

ImportedTrace read_trace(const CommandLine& line) {
  if (all_end_with(line, {".jsonl", ".jsonl.gz"})) return from_route_logs(line);
  if (line.positionals.size() > 1) {
    throw UsageError(
        fmt::format("unexpected argument '{}': only profiler traces (.json) and "
                    "route logs (.jsonl) are several files",
                    line.positionals[1]));
  }
  if (all_end_with(line, {".csv"})) return from_table(line);
  if (all_end_with(line, {".npy", ".npz"})) return from_array(line);
  throw UsageError(
      fmt::format("{}: what is it? Known by their names are tables of counts (.csv), arrays of "
                  "logits, choices or counts (.npy, .npz), route logs (.jsonl, .jsonl.gz), "
                  "profiler traces (.json, .json.gz) and nccl-tests output (.txt, .log)",
                  line.positionals.front()));
}

}  // namespace

ExitCode import_trace(const CommandLine& line, const std::string& folder) {
  write_imported_trace(line, folder, read_trace(line));
  return ExitCode::ok;
}

}  // namespace moesim::tool
