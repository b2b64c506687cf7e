#include "sim/profile/nccl_tests/operation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace moesim::profile {
namespace {

struct Program {
  const char* name;
  const char* operation;
};
constexpr std::array<Program, 5> programs{{{"alltoall_perf", "all-to-all"},
                                           {"all_reduce_perf", "all-reduce"},
                                           {"all_gather_perf", "all-gather"},
                                           {"reduce_scatter_perf", "reduce-scatter"},
                                           {"sendrecv_perf", "send-receive"}}};

std::string operation_of(const std::string& program) {
  for (const Program& known : programs) {
    if (program == known.name) return known.operation;
  }
  return "";
}

// nccl-tests' other programs: no operation of a step.
constexpr std::array others{"broadcast_perf", "reduce_perf", "gather_perf", "scatter_perf",
                            "hypercube_perf"};

constexpr const char* known_programs =
    "known are alltoall_perf, all_reduce_perf, all_gather_perf, reduce_scatter_perf, sendrecv_perf";

}  // namespace

void name_operation(NcclTestsRun& run) {
  run.operation = operation_of(run.program);
  if (run.program.empty() || !run.operation.empty()) return;
  run.other = std::find(others.begin(), others.end(), run.program) != others.end();
  if (!run.other) refuse(run, run.line, fmt::format("{}: {}", run.program, known_programs));
}

std::string operation_in_name(const std::string& file_name) {
  const auto plain = [](const std::string& text) {
    std::string letters;
    for (const char letter : text) {
      if (letter != '_' && letter != '-') letters += letter;
    }
    return letters;
  };
  for (const Program& program : programs) {
    const std::string name(program.name);
    if (plain(file_name).find(plain(name.substr(0, name.rfind("_perf")))) != std::string::npos) {
      return program.operation;
    }
  }
  return "";
}

std::string left_out(const NcclTestsRun& run) {
  return fmt::format("{}: {} is left out: no step has this operation; {}", place_of(run),
                     run.program, known_programs);
}

double bus_factor(const std::string& operation, double ranks) {
  if (operation == "all-reduce") return 2 * (ranks - 1) / ranks;
  if (operation == "send-receive") return 1;
  return (ranks - 1) / ranks;
}

void check_operation(const NcclTestsRun& run, const std::string& operation) {
  if (!run.operation.empty() && run.operation != operation) {
    refuse(run, run.line, fmt::format("{} is {}, not {}", run.program, run.operation, operation));
  }
  const double expected = bus_factor(operation, run.gpus);
  for (const NcclTestsRow& row : run.rows) {
    // Both bandwidths have two decimals and are at least 1.
    const auto fits = [&](double factor) {
      return std::abs(row.bus_over_algorithm - factor) < 0.02;
    };
    if (row.bus_over_algorithm == 0 || fits(expected)) continue;
    for (const Program& other : programs) {
      if (!fits(bus_factor(other.operation, run.gpus))) continue;
      refuse(
          run, row.line,
          fmt::format("busbw is {:.2f} of algbw as of {} among {} GPUs; of {} it is {:.2f}: this "
                      "is another operation",
                      row.bus_over_algorithm, other.operation, run.gpus, operation, expected));
    }
  }
}

}  // namespace moesim::profile
