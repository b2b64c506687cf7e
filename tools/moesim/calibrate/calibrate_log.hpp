#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/formats/csv.hpp"

namespace moesim::tool {

// The steps that a log of Megatron-LM has: of each line with "elapsed time per iteration (ms):" the
// time, and "global batch size:".
struct LoggedSteps {
  std::string name;          // of the file
  std::size_t line = 0;      // of the first that counts
  std::vector<double> ms;    // after warm-up: without the first tenth, at least one of two
  std::size_t left_out = 0;  // as warm-up
  std::string global_batch;  // "": not said
  std::size_t cut_line = 0;  // left out: the job was killed while it was written; 0: none

  double median_ms() const;
  // One row: the median, in this column, and global_batch.
  CsvTable table(const std::string& time_column) const;
  std::string summary() const;  // for people
};

// The steps of a log; nothing for a text that is none. Throws UsageError naming file and line for a
// time that is no number above 0, or for steps of several global batches.
std::optional<LoggedSteps> megatron_log(std::string_view text, const std::string& name);

}  // namespace moesim::tool
