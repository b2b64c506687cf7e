#include "sim/profile/nccl_tests/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "sim/profile/nccl_tests/doubts.hpp"
#include "sim/profile/nccl_tests/json_output.hpp"
#include "sim/profile/nccl_tests/operation.hpp"
#include "sim/profile/nccl_tests/printed_output.hpp"

namespace moesim::profile {

std::vector<NcclTestsRun> read_nccl_tests_log(const std::string& file) {
  std::vector<NcclTestsRun> runs;
  if (file.ends_with(".json")) {
    runs.push_back(read_json_output(file));
  } else {
    runs = read_printed_output(file);
  }
  int ranks = 0;
  std::size_t rows = 0;
  for (NcclTestsRun& run : runs) {
    ranks = std::max(ranks, run.gpus);
    rows += run.rows.size();
    name_operation(run);
    doubt_falls(run);
    if (run.gpus > 1 && run.rows.empty() && runs.size() > 1) {
      refuse(run, run.line, "this run has no rows of times: it failed or is cut off");
    }
  }
  if (ranks < 2 || rows == 0) {
    if (const std::string prefix = prefix_of_ranks(file); ranks == 0 && !prefix.empty()) {
      throw UsageError(
          fmt::format("{}: lines have '{}' before what nccl-tests printed: take such prefixes off "
                      "(sed, cut -c{}-); those of mpirun --tag-output and srun --label may stay",
                      file, printable(prefix), prefix.size() + 1));
    }
    throw UsageError(
        fmt::format("{}: {} '# Rank' lines and {} rows of times below a heading: this is no "
                    "output of nccl-tests on 2 or more GPUs, or its lines with # are missing: give "
                    "all of it",
                    file, ranks, rows));
  }
  return runs;
}

}  // namespace moesim::profile
