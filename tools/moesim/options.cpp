#include <nlohmann/json.hpp>

#include "sim/report/options_document.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/output.hpp"

namespace moesim::tool {
namespace {

ExitCode run(const CommandLine& line) {
  const report::Format format = chosen_format(line, report::Format::table);
  if (format == report::Format::csv) {
    throw UsageError("--format: options are a table or json: choose one of these");
  }
  const Output out(line.get("out"));
  out.write(format == report::Format::json ? report::options_document().dump(2) + "\n"
                                           : report::options_table());
  return ExitCode::ok;
}

}  // namespace

Command options_command() {
  return {"options",
          "the scenario options and the result columns, also for programs",
          "[options]",
          "moesim options --format json",
          {{"format", "NAME", "table; json if --out says so", "table, or json with the columns"},
           out_flag()},
          false,
          0,
          run};
}

}  // namespace moesim::tool
