#include <fmt/format.h>

#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/timeline.hpp"
#include "tools/moesim/command_line/config.hpp"
#include "tools/moesim/megatron/megatron_options.hpp"
#include "tools/moesim/train/train_grid.hpp"
#include "tools/moesim/train/train_journal.hpp"
#include "tools/moesim/train/train_request.hpp"
#include "tools/moesim/train/train_step.hpp"

namespace moesim::tool {
namespace {

std::vector<Flag> flags() {
  std::vector<Flag> flags = train_flags();
  for (const Flag& flag : band_flags()) flags.push_back(flag);
  flags.push_back({"measured", "TIME|TRACE,...", "none",
                   "a measured step beside the expected one, part by part: 812ms, or traces of "
                   "torch.profiler (.json, .json.gz), one per rank"});
  flags.push_back(megatron_input());
  flags.push_back(timeline_flag("the step, one GPU of each pipeline rank"));
  flags.push_back(timeline_gpus_flag());
  flags.push_back(format_flag("table; of several steps with --out csv, or what its name says"));
  flags.push_back(out_flag());
  flags.push_back(jobs_flag());
  flags.push_back(train_resume_flag());
  flags.push_back(config_flag());
  flags.push_back(from_flag());
  return flags;
}

ExitCode run(const CommandLine& given) {
  TrainGrid grid = train_grid(given, flags());
  const CommandLine line = take_megatron(grid, given);
  if (!grid.is_one()) return run_train_grid(line, grid, row_of_train);
  if (line.has("resume")) {
    throw UsageError("--resume: continues a run of several steps: give an option several values");
  }
  return run_train_step(line, row_of_train);
}

}  // namespace

Command train_command() {
  return {"train",
          "time, memory and speed of a training step under any layout",
          "[options]",
          "moesim train --model qwen3-30b-a3b --gpus 64 --pipeline-parallel 2",
          flags(),
          false,
          0,
          run,
          "Tensor, context, pipeline, expert and data parallelism. Experts are balanced\n"
          "unless an option of routing is given: router, capacity, token loss, imbalance.\n"
          "Options take lists a,b,c too, numbers lo:hi:step, --recompute a/b: a row for\n"
          "each step, with --out FILE.csv for moesim plot.\n"
          "How far off it is, by machine: sim/training/ACCURACY.md.\n"};
}

}  // namespace moesim::tool
