#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/moesim/base/command.hpp"
#include "tools/moesim/train/train_report.hpp"

namespace moesim::tool {

// Options of `train` that were given several values, "1,2" or for numbers "0.5:2:0.25"; of
// --recompute, whose value is a list, "none/full".
struct TrainGrid {
  std::vector<Flag> flags;                       // those with several values, as --help lists them
  std::vector<std::vector<std::string>> values;  // [point, flag]
  std::vector<CommandLine> lines;                // [point], the first flag varies slowest
  std::vector<std::string> refusals;             // [point]: "" where it can be; empty: all can

  bool is_one() const { return flags.empty(); }
};

// Every combination of the values of a command line. Throws UsageError naming the flag: an empty
// item, a range that is none, more than max_train_points combinations, several values beside a flag
// that is for one step (--measured, --timeline).
TrainGrid train_grid(const CommandLine& line, const std::vector<Flag>& flags);
constexpr std::size_t max_train_points = 100'000;

// Puts what --megatron gives below the options of each point, as if its values were typed alone: so
// a row of a list is the step of one value. A point that the script cannot be is refused, one that
// is the only one with an exception. Returns the line with what all points have of the script.
CommandLine take_megatron(TrainGrid& grid, CommandLine line);

// Predicts the step of each point and writes a row for each: a table of what differs, or CSV or
// JSON with all options, for `moesim plot` and --from. A point that cannot be is a row with its
// reason. With --out the finished points are kept in a journal, from which --resume continues.
// `row`: what CSV and JSON have of a point, with all columns of row_of_train().
ExitCode run_train_grid(const CommandLine& line, const TrainGrid& grid, const RowOf& row);

}  // namespace moesim::tool
