#include <nlohmann/json.hpp>

#include "sim/report/options_document.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/train/all_options.hpp"

namespace moesim::tool {
namespace {

ExitCode run(const CommandLine& line) {
  const report::Format format = chosen_format(line, report::Format::table);
  if (format == report::Format::csv) {
    throw UsageError("--format: options are a table or json: choose one of these");
  }
  const Output out(line.get("out"));
  out.write(format == report::Format::json ? all_options().dump(2) + "\n"
                                           : report::options_table());
  return ExitCode::ok;
}

}  // namespace

Command options_command() {
  const auto words = [] {
    std::vector<std::string> names = words_in<report::format_names>();
    std::erase(names, name_in(report::format_names, report::Format::csv));
    return names;
  };
  return {"options",
          "the scenario options and the result columns, also for programs",
          "[options]",
          "moesim options --format json",
          {with_words({"format", "NAME", "table; json if --out says so",
                       "table, or json with the columns"},
                      words),
           out_flag()},
          false,
          0,
          run};
}

}  // namespace moesim::tool
