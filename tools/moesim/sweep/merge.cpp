#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/sweep/sweep_parts.hpp"

namespace moesim::tool {
namespace {

ExitCode run(const CommandLine& line) {
  if (line.positionals.empty()) {
    throw UsageError("merge: no file given: the CSVs of 'moesim sweep --shard'");
  }
  const Output out(line.get("out"));
  const MergedParts merged = merge_parts(line.positionals);
  if (!merged.missing.empty()) {
    constexpr std::size_t shown = 10;
    const std::vector<std::size_t> first(
        merged.missing.begin(), merged.missing.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                             shown, merged.missing.size())));
    throw Error(fmt::format(
        "{} of {} rows are in no file ({}{}): give the files of all shards, each finished "
        "('moesim sweep --shard I/N --resume')",
        merged.missing.size(), merged.rows + merged.missing.size(), fmt::join(first, ", "),
        merged.missing.size() > shown ? ", ..." : ""));
  }
  write_keeping(out, merged.csv, report::Format::csv, sweep_option_columns());
  if (line.has("out")) {
    note(fmt::format("{} scenarios of {} files: {}", merged.rows, line.positionals.size(),
                     line.get("out")));
  }
  return ExitCode::ok;
}

}  // namespace

Command merge_command() {
  return {"merge",
          "the shards of a sweep into the CSV that one process writes",
          "FILE... [--out FILE]",
          "moesim merge part-1.csv part-2.csv --out sweep.csv",
          {out_flag()},
          false,
          1000000,
          run};
}

}  // namespace moesim::tool
