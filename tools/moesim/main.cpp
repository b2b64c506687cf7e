#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <exception>
#include <new>

#include "sim/base/error.hpp"
#include "sim/base/flag_errors.hpp"
#include "sim/base/shipped.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/commit.hpp"
#include "tools/moesim/base/interrupt.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/standard_files.hpp"
#include "tools/moesim/command_line/config.hpp"
#include "tools/moesim/megatron/megatron_model_option.hpp"
#include "tools/moesim/train/layout_scenario.hpp"

namespace moesim::tool {
namespace {

Command find_command(const std::string& name) {
  std::vector<std::string> names;
  for (Command& command : all_commands()) {
    if (command.name == name) return std::move(command);
    names.push_back(command.name);
  }
  throw UsageError(fmt::format("unknown command '{}'{}; 'moesim --help' lists the commands", name,
                               suggestion(name, names)));
}

// Working memory of a layer is freed and needed again for the next one, thousands of times: glibc
// would return its pages and have each faulted in anew, up to a third of a command's time.
void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr int most_kept = 256 << 20;
  mallopt(M_TRIM_THRESHOLD, most_kept);
  // Large blocks too: the counts of a layer with all its micro-batches are 32 MiB and more.
  mallopt(M_MMAP_MAX, 0);
#endif
}

bool asks_for_help(const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument == "--help" || argument == "-h";
  });
}

ExitCode run_command(const Command& command, CommandLine line) {
  ExitCode code = ExitCode::failure;
  with_flag_of_errors(line.values, [&] {
    take_profile_of_cluster(command, line);
    note_model_alone(command, line);
    code = command.run(line);
  });
  return code;
}

ExitCode run_program(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    note(overview());
    return ExitCode::usage;
  }
  const std::string& first = arguments[0];
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  const Output out("");
  if (first == "--version") {
    const std::string commit = source_commit();
    out.write(commit.empty() ? "moesim " MOESIM_VERSION "\n"
                             : fmt::format("moesim {} (commit {})\n", MOESIM_VERSION, commit));
  } else if (first == "--help" || first == "-h" || (first == "help" && rest.empty())) {
    show(overview());
  } else if (first == "help") {
    show(help_text(find_command(rest[0])));
  } else if (first.starts_with("-")) {
    throw UsageError(
        fmt::format("unknown option {}: a command comes first; 'moesim --help' lists "
                    "the commands",
                    first));
  } else {
    const Command command = find_command(first);
    if (asks_for_help(rest)) {
      show(help_text(command));
      return ExitCode::ok;
    }
    const Command asked = command_with_layout(command, rest).value_or(command);
    return run_command(asked, parse_arguments(asked, rest));
  }
  return ExitCode::ok;
}

}  // namespace
}  // namespace moesim::tool

int main(int count, char** arguments) {
  using moesim::ExitCode;
  using moesim::tool::note;
  ExitCode code = ExitCode::failure;
  try {
    moesim::tool::keep_freed_memory();
    moesim::tool::open_standard_files();
    moesim::tool::install_signal_handlers();
    code = moesim::tool::run_program({arguments + std::min(count, 1), arguments + count});
  } catch (const moesim::Error& error) {
    note(fmt::format("moesim: error: {}", error.what()));
    code = error.code();
  } catch (const std::bad_alloc&) {
    note("moesim: error: out of memory: try fewer --jobs, GPUs or tokens");
  } catch (const std::exception& error) {
    note(fmt::format("moesim: internal error: {}; please report it", error.what()));
  }
  if (code == ExitCode::ok && moesim::tool::reader_has_left()) moesim::tool::end_by_closed_pipe();
  return static_cast<int>(code);
}
