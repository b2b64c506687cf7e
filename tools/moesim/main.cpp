#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string_view>

#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/commit.hpp"
#include "tools/moesim/config.hpp"
#include "tools/moesim/interrupt.hpp"
#include "tools/moesim/megatron/megatron_model_option.hpp"
#include "tools/moesim/output.hpp"
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

// The flag whose value, or a part of a list of values, the predicate accepts; "" of several flags,
// or of none.
template <class Accepts>
std::string flag_with(const CommandLine& line, Accepts accepts) {
  std::vector<std::string> found;
  for (const auto& [flag, value] : line.values) {
    const std::vector<std::string_view> parts = split(value, ',');
    const bool in_list = std::any_of(parts.begin(), parts.end(), accepts);
    if (in_list || accepts(std::string_view(value))) found.push_back(flag);
  }
  return found.size() == 1 ? found.front() : "";
}

// `error` again, with the flag that asked for the document or file `name` before its message.
[[noreturn]] void rethrow_with_flag(const CommandLine& line, const std::string& name,
                                    const UsageError& error) {
  const std::string flag = flag_with(line, [&](std::string_view value) { return value == name; });
  if (flag.empty()) throw error;
  throw UsageError(fmt::format("--{}: {}", flag, error.what()));
}

// The flag of the file that an error is about, which its message starts with: "cluster.json: line
// 3: ...", "'cluster.csv' is a file, ...".
std::string flag_of_file(const CommandLine& line, std::string_view message) {
  return flag_with(line, [message](std::string_view value) {
    if (value.empty()) return false;
    return message.starts_with(fmt::format("{}: ", value)) ||
           message.starts_with(fmt::format("'{}' is a file", value));
  });
}

ExitCode run_command(const Command& command, CommandLine line) {
  try {
    take_profile_of_cluster(command, line);
    note_model_alone(command, line);
    return command.run(line);
  } catch (const UnknownDocument& error) {
    rethrow_with_flag(line, error.name(), error);
  } catch (const UnreadableFile& error) {
    rethrow_with_flag(line, error.path(), error);
  } catch (const Error& error) {
    const std::string flag = flag_of_file(line, error.what());
    if (flag.empty()) throw;
    throw Error(fmt::format("--{}: {}", flag, error.what()), error.code());
  }
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
