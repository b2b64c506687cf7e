#include "tools/moesim/profiling/import_profiler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/text.hpp"
#include "sim/report/explanation.hpp"
#include "sim/routing/traces/trace_import.hpp"
#include "sim/study/explain/measured_trace.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/profiling/import_flags.hpp"
#include "tools/moesim/profiling/imported_trace.hpp"

namespace moesim::tool {
namespace {

std::string inside(const std::string& folder, const char* name) {
  return (std::filesystem::path(folder) / name).string();
}

std::string exchanges_csv(const routing::ProfiledExchanges& found) {
  std::string text = csv_line({"step", "layer", "pass", "exchange", "padded", "rows_mean",
                               "rows_max", "bytes_max", "kernel_us_fastest", "kernel_us_slowest"});
  const char* const padded = found.block_rows.empty() ? "0" : "1";
  const auto if_known = [](double value) {
    return value > 0 ? fmt::format("{:.6g}", value) : std::string();
  };
  for (const routing::ProfiledExchange& one : found.exchanges) {
    text += csv_line({fmt::format("{}", one.step), fmt::format("{}", one.layer),
                      one.backward ? "backward" : "forward", fmt::format("{}", one.index), padded,
                      fmt::format("{}", one.mean_rows), fmt::format("{}", one.most_rows),
                      one.most_bytes > 0 ? fmt::format("{}", one.most_bytes) : std::string(),
                      if_known(one.fastest_us), if_known(one.slowest_us)});
  }
  return text;
}

// What profiler traces say beside the routing, into an existing folder. Notes say so.
void write_profiled_times(const std::string& folder, const routing::ProfiledExchanges& found,
                          const std::vector<std::string>& files) {
  const std::string exchanges = inside(folder, "exchanges.csv");
  write_file_atomically(exchanges, exchanges_csv(found));
  const bool is_timed = !found.exchanges.empty() && found.exchanges.front().slowest_us > 0;
  note(fmt::format("{}: rows, bytes{} of {} all-to-alls", exchanges,
                   is_timed ? " and kernel times" : "", found.exchanges.size()));
  try {
    const study::TracedStep step = study::read_traced_step(files);
    write_file_atomically(inside(folder, "parts.csv"), report::measured_parts_csv(step));
    note(fmt::format(
        "{}: kernel times by part of a step of {:.4g} ms: {} exposed; `moesim explain` "
        "holds them against the expected step",
        inside(folder, "parts.csv"), step.exposed.total_ms, report::largest_parts_text(step)));
  } catch (const UsageError& error) {
    note(fmt::format("no kernel times by part: {}", error.what()));
  }
}

// The capacity that padded exchanges have, and what would be needed to know more. `experts`,
// `tokens` (of a rank and step): 0 where they were not given.
void note_padded(const routing::ProfiledExchanges& found, int experts, std::int64_t tokens,
                 int top_k) {
  const std::vector<std::int64_t>& blocks = found.block_rows;
  const auto [least, most] = std::minmax_element(blocks.begin(), blocks.end());
  const bool is_one_size = *least == *most;
  note(
      fmt::format("padded exchanges: each of {} ranks sends {} rows to each, filled or not; they "
                  "say nothing of the routing, so no trace is made",
                  found.ranks,
                  is_one_size ? fmt::format("{}", *most) : fmt::format("{} to {}", *least, *most)));
  if (experts == 0) {
    note("with --experts E (and --tokens of a rank) also the capacity that they are padded to");
    return;
  }
  if (experts % found.ranks != 0) {
    throw UsageError(fmt::format("--experts: {} do not divide over the {} ranks of the exchanges",
                                 experts, found.ranks));
  }
  const int per_rank = experts / found.ranks;
  if (*most % per_rank != 0) {
    throw UsageError(
        fmt::format("--experts: {} are {} per rank, which do not divide blocks of {} "
                    "rows: another number, or --row-values is not the hidden size",
                    experts, per_rank, *most));
  }
  const std::int64_t capacity = *most / per_rank;
  if (tokens == 0) {
    note(
        fmt::format("{}capacity {} rows of each expert and rank; with --tokens N of a rank also "
                    "the capacity factor",
                    is_one_size ? "" : "largest ", capacity));
    return;
  }
  // ceil(F K S / E) = C for every F above (C - 1) E / (K S), up to C E / (K S).
  const double unit =
      static_cast<double>(experts) / static_cast<double>(top_k) / static_cast<double>(tokens);
  const double factor = static_cast<double>(capacity) * unit;
  // As a capacity factor is typed, not above it: rounded up it would give a row more.
  constexpr double digits = 1e9;
  const double typed = std::floor(factor * digits * (1 - 1e-15)) / digits;
  note(fmt::format(
      "{}capacity {} rows of each expert and rank: a capacity factor above {:.6g}, up "
      "to {:.6g} (library convention: a balanced load needs 1)",
      is_one_size ? "" : "largest ", capacity, static_cast<double>(capacity - 1) * unit, factor));
  note(
      fmt::format("try: moesim route --router topk --top-k {} --experts {} --gpus {} "
                  "--tokens-per-gpu {} --capacity-factor {:.9f} --capacity-convention library",
                  top_k, experts, found.ranks, tokens, typed));
}

routing::ProfilerQuery profiler_query(const CommandLine& line) {
  refuse_other_flags(line, "profiler traces (.json, .json.gz)",
                     with_trace_flags({"layers", "exchanges-per-layer", "backward", "process-group",
                                       "row-values", "experts", "tokens"}));
  routing::ProfilerQuery query;
  query.files = line.positionals;
  query.process_group = line.get("process-group");
  query.layers = needed_whole(line, "layers", 65535, "how many MoE layers a step has");
  if (line.has("exchanges-per-layer")) {
    query.exchanges = static_cast<int>(
        parse_whole("--exchanges-per-layer", line.get("exchanges-per-layer"), 2, 64));
  }
  query.backward = line.has("backward");
  if (line.has("row-values")) {
    query.row_values =
        parse_whole("--row-values", line.get("row-values"), 1, std::int64_t{1} << 32);
  }
  query.top_k = needed_top_k(line);
  return query;
}

}  // namespace

ExitCode import_profiler(const CommandLine& line, const std::string& folder) {
  const routing::ProfilerQuery query = profiler_query(line);
  const routing::ProfiledExchanges found = routing::import_profiler_traces(query);
  if (found.routing.trace) {
    refuse_other_flags(line, "uneven exchanges, which have the rows themselves",
                       with_trace_flags({"layers", "exchanges-per-layer", "backward",
                                         "process-group", "row-values"}));
    write_imported_trace(line, folder, found.routing);
  } else {
    const std::filesystem::path before = std::filesystem::path(folder) / "trace.json";
    if (std::filesystem::exists(before)) {
      throw UsageError(
          fmt::format("--out: {} is a trace, which padded exchanges do not make: name "
                      "another folder",
                      folder));
    }
    constexpr std::int64_t most = std::int64_t{1} << 31;
    note_padded(found, line.has("experts") ? needed_whole(line, "experts", 65534, "") : 0,
                line.has("tokens") ? parse_whole("--tokens", line.get("tokens"), 1, most) : 0,
                query.top_k);
    std::error_code failure;
    std::filesystem::create_directories(folder, failure);
    if (failure) throw Error(fmt::format("{}: cannot be made: {}", folder, failure.message()));
  }
  write_profiled_times(folder, found, query.files);
  return ExitCode::ok;
}

}  // namespace moesim::tool
