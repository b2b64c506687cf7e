#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace moesim::kernels::measure {

// How this process stands among those that were started together.
struct Launch {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;  // among those of this node
  int local_ranks = 1;
  std::string address;  // host:port where rank 0 listens; "" for one process
  std::string source;   // "flags", "mpirun", "srun", "mpiexec", "torchrun", "one process"
};

// What was typed: --rank, --ranks and --address, with --local-rank.
struct LaunchFlags {
  std::optional<int> rank;
  std::optional<int> ranks;
  std::optional<int> local_rank;
  std::optional<std::string> address;
};

// The value of an environment variable, or nothing.
using Environment = std::function<std::optional<std::string>(const std::string&)>;
std::optional<std::string> process_environment(const std::string& name);

// The GPUs that CUDA may show this process, without asking it: those of CUDA_VISIBLE_DEVICES, else
// the files nvidia0, nvidia1, ... of `devices`; 0 if neither says.
int visible_gpus(const Environment& environment, const std::string& devices = "/dev");

// Call it before CUDA is first used, and before there are other threads, by a process that drives
// `gpus` GPUs, a thread each: with several, kernels are loaded as a device is opened and not at
// their first launch (queue_together() says why). Sets CUDA_MODULE_LOADING, unless it is set.
void load_kernels_early(int gpus);

// Flags first, then what mpirun (OMPI_*), mpiexec of MPICH and Intel MPI (PMI_RANK,
// MPI_LOCALRANKID), torchrun (RANK, WORLD_SIZE, TORCHELASTIC_RUN_ID) and srun (SLURM_* inside a
// step) leave in the environment, else one process. MOESIM_ADDRESS overrides the address. Throws
// UsageError naming the flag or variable that is missing, no number or out of range.
Launch detect_launch(const LaunchFlags& flags, const Environment& environment);

// The device of this process among the `visible` ones: that of its local rank, or the only one that
// its launcher lets it see (srun --gpus-per-task=1). Throws UsageError where there are several, but
// fewer than ranks.
int device_of(const Launch& launch, int visible);

// Throws UsageError if two ranks that were to have a GPU of their own got the same one. `devices`
// are the ranks' identities ("" if unknown); `narrowed` says which ranks see one GPU though their
// local rank is beyond it.
void check_own_devices(const std::vector<std::string>& devices, const std::vector<bool>& narrowed);

// What tells this machine from others: its name, and the kernel's boot id from `boot_id_file`,
// since names may be equal ("localhost"). Processes of one machine that have the same name agree.
std::string machine_identity(const std::string& host, const std::string& boot_id_file);

// How many ranks each node has, from the nodes of all ranks, by rank; 0 if they are not equally
// many on each, node by node.
int ranks_per_node(const std::vector<std::string>& nodes);

// "node[03-05,9]" -> "node03": the first host of a Slurm node list.
std::string first_host(const std::string& node_list);

}  // namespace moesim::kernels::measure
