#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "sim/study/sweep/sweep.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/sweep/sweep_parts.hpp"

namespace moesim::tool {

// What a launcher (mpirun, srun) says of this process.
struct Launched {
  std::size_t rank = 0;
  std::size_t size = 1;
  std::string job;  // differs between runs, where the launcher names them
};
// The launch as the environment says it that Open MPI, MPICH's Hydra, Intel MPI, or a Slurm step of
// several tasks set; nothing for a process that was started by itself.
std::optional<Launched> launched();

struct SharedSweep {
  const std::vector<study::SweepPoint>& points;
  const RowNames& names;
  std::string out;
  bool resume = false;
  study::SweepSettings settings;  // jobs and stop
};

// The folder where processes that share a sweep keep its parts: beside the file `out`, and of a
// link beside the file that it leads to. Throws Error for a link that cannot be followed.
std::string parts_folder(const std::string& out);

// One process of several that evaluate a sweep together: each takes the next chunk that nobody has,
// by a lock on a file in parts_folder(), and writes its rows there; when all are there one
// of them puts `out` together. The lock of a process that dies is free again, so that another one
// takes its chunk; a later run with `resume` goes on where all ended. Throws UsageError if the
// folder has parts of another sweep, or of an earlier run without `resume`.
ExitCode run_shared(const SharedSweep& sweep, const Launched& process);

}  // namespace moesim::tool
