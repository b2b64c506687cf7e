#include "kernels/measure/ranks/launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "sim/base/digest.hpp"
#include "sim/base/error.hpp"
#include "sim/base/text.hpp"

namespace moesim::kernels::measure {
namespace {

// Where rank 0 listens if nothing says so: outside the ephemeral range of Linux, and another one
// for every job, so that two jobs on a node do not meet.
int port_of(const std::string& job) { return 20000 + static_cast<int>(fnv1a_32(job) % 10000U); }

class Detection {
 public:
  explicit Detection(const Environment& environment) : environment_(environment) {}

  std::optional<int> number(const std::string& name) const {
    const auto text = environment_(name);
    if (!text) return std::nullopt;
    const std::optional<int> value = parse_number<int>(*text);
    if (!value || *value < 0) {
      throw UsageError(fmt::format("{}={}: expected a whole number of at least 0", name, *text));
    }
    return value;
  }

  int needed(const std::string& name, const std::string& beside) const {
    if (const auto value = number(name)) return *value;
    throw UsageError(
        fmt::format("{} is set but {} is not: start all ranks by the same launcher", beside, name));
  }

  std::string text(const std::string& name) const { return environment_(name).value_or(""); }

 private:
  const Environment& environment_;
};

std::optional<Launch> from_mpirun(const Detection& found) {
  const auto rank = found.number("OMPI_COMM_WORLD_RANK");
  if (!rank) return std::nullopt;
  Launch launch;
  launch.source = "mpirun";
  launch.rank = *rank;
  launch.ranks = found.needed("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
  launch.local_rank = found.needed("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK");
  launch.local_ranks = found.needed("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK");
  // mpirun does not say where rank 0 is; on one node it is here.
  if (launch.local_ranks == launch.ranks) {
    launch.address = fmt::format("127.0.0.1:{}", port_of(found.text("PMIX_NAMESPACE")));
  }
  return launch;
}

// Inside a step only: a batch script has SLURM_PROCID too, but no peers.
std::optional<Launch> from_srun(const Detection& found) {
  const auto rank = found.number("SLURM_PROCID");
  if (!rank || found.text("SLURM_STEP_ID").empty()) return std::nullopt;
  Launch launch;
  launch.source = "srun";
  launch.rank = *rank;
  const auto tasks = found.number("SLURM_STEP_NUM_TASKS");
  launch.ranks = tasks ? *tasks : found.needed("SLURM_NTASKS", "SLURM_PROCID");
  launch.local_rank = found.needed("SLURM_LOCALID", "SLURM_PROCID");
  std::string nodes = found.text("SLURM_STEP_NODELIST");
  if (nodes.empty()) nodes = found.text("SLURM_JOB_NODELIST");
  const auto count = found.number("SLURM_STEP_NUM_NODES");
  launch.local_ranks = count && *count > 0 ? (launch.ranks + *count - 1) / *count : launch.ranks;
  if (!nodes.empty()) {
    const std::string job = found.text("SLURM_JOB_ID") + "." + found.text("SLURM_STEP_ID");
    launch.address = fmt::format("{}:{}", first_host(nodes), port_of(job));
  }
  return launch;
}

// MPICH's and Intel MPI's mpiexec (Hydra). srun sets PMI_RANK too, but not MPI_LOCALRANKID.
std::optional<Launch> from_mpich(const Detection& found) {
  const auto rank = found.number("PMI_RANK");
  if (!rank) return std::nullopt;
  Launch launch;
  launch.source = "mpiexec";
  launch.rank = *rank;
  launch.ranks = found.needed("PMI_SIZE", "PMI_RANK");
  launch.local_rank = found.needed("MPI_LOCALRANKID", "PMI_RANK");
  launch.local_ranks = found.needed("MPI_LOCALNRANKS", "PMI_RANK");
  // As of mpirun; no variable tells two jobs on a node apart but PMI_PORT, which some versions set.
  if (launch.local_ranks == launch.ranks) {
    launch.address = fmt::format("127.0.0.1:{}", port_of("mpiexec " + found.text("PMI_PORT")));
  }
  return launch;
}

std::optional<Launch> from_torchrun(const Detection& found) {
  const auto rank = found.number("RANK");
  if (!rank || !found.number("WORLD_SIZE")) return std::nullopt;
  Launch launch;
  launch.source = "torchrun";
  launch.rank = *rank;
  launch.ranks = *found.number("WORLD_SIZE");
  launch.local_rank = found.needed("LOCAL_RANK", "RANK");
  launch.local_ranks = found.number("LOCAL_WORLD_SIZE").value_or(launch.ranks);
  const std::string host = found.text("MASTER_ADDR");
  if (!host.empty()) {
    // torchrun's own agent listens on MASTER_PORT.
    const int port = found.needed("MASTER_PORT", "MASTER_ADDR");
    launch.address = fmt::format("{}:{}", host, port > 65000 ? port - 17 : port + 17);
  }
  return launch;
}

std::optional<Launch> from_flags(const LaunchFlags& flags) {
  if (!flags.rank && !flags.ranks && !flags.address && !flags.local_rank) return std::nullopt;
  if (!flags.rank || !flags.ranks || !flags.address) {
    throw UsageError(
        "--rank, --ranks and --address go together: the same --ranks and --address "
        "for all processes, --rank 0 to N-1, --address HOST:PORT of rank 0");
  }
  Launch launch;
  launch.source = "flags";
  launch.rank = *flags.rank;
  launch.ranks = *flags.ranks;
  launch.local_rank = flags.local_rank.value_or(launch.rank);
  launch.local_ranks = flags.local_rank ? 0 : launch.ranks;
  launch.address = *flags.address;
  return launch;
}

void check(const Launch& launch) {
  if (launch.ranks < 1 || launch.rank < 0 || launch.rank >= launch.ranks || launch.local_rank < 0 ||
      launch.local_rank >= launch.ranks) {
    throw UsageError(
        fmt::format("{} says rank {} of {}, local rank {}: expected ranks from 0 to "
                    "one less than their number",
                    launch.source, launch.rank, launch.ranks, launch.local_rank));
  }
  if (launch.ranks == 1) return;
  const std::size_t colon = launch.address.rfind(':');
  if (launch.address.empty()) {
    throw UsageError(
        fmt::format("{} does not say where rank 0 is: set MOESIM_ADDRESS=HOST:PORT "
                    "for all ranks",
                    launch.source));
  }
  const std::string text = colon == std::string::npos ? "" : launch.address.substr(colon + 1);
  const int port = parse_number<int>(text).value_or(0);
  if (colon == 0 || port < 1 || port > 65535 || std::to_string(port) != text) {
    throw UsageError(
        fmt::format("address '{}': expected HOST:PORT, a port from 1 to 65535", launch.address));
  }
}

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

int visible_gpus(const Environment& environment, const std::string& devices) {
  if (const auto listed = environment("CUDA_VISIBLE_DEVICES")) {
    return 1 + static_cast<int>(std::count(listed->begin(), listed->end(), ','));
  }
  int count = 0;
  std::error_code unreadable;
  std::filesystem::directory_iterator files(devices, unreadable);
  for (; !unreadable && files != std::filesystem::directory_iterator();
       files.increment(unreadable)) {
    const std::string name = files->path().filename().string();
    const std::size_t number = std::string("nvidia").size();
    const bool is_gpu = name.starts_with("nvidia") && name.size() > number &&
                        name.find_first_not_of("0123456789", number) == std::string::npos;
    if (is_gpu) ++count;
  }
  return count;
}

void load_kernels_early(int gpus) {
  constexpr int keep = 0;
  if (gpus > 1) ::setenv("CUDA_MODULE_LOADING", "EAGER", keep);
}

int device_of(const Launch& launch, int visible) {
  if (launch.local_rank < visible) return launch.local_rank;
  if (visible == 1) return 0;
  throw UsageError(fmt::format(
      "local rank {} of {}, but this node has {} GPU(s): start as many ranks per node as it has "
      "GPUs",
      launch.local_rank, launch.source, visible));
}

void check_own_devices(const std::vector<std::string>& devices, const std::vector<bool>& narrowed) {
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    if (!narrowed[rank] || devices[rank].empty()) continue;
    for (std::size_t other = 0; other < devices.size(); ++other) {
      if (other == rank || devices[other] != devices[rank]) continue;
      throw UsageError(
          fmt::format("ranks {} and {} both see {} and nothing else: start as many ranks per node "
                      "as it has GPUs",
                      std::min(rank, other), std::max(rank, other), devices[rank]));
    }
  }
}

std::string machine_identity(const std::string& host, const std::string& boot_id_file) {
  std::ifstream file(boot_id_file);
  std::string id;
  std::getline(file, id);
  return id.empty() ? host : host + " " + id;
}

int ranks_per_node(const std::vector<std::string>& nodes) {
  const auto count = [&](const std::string& node) {
    return std::count(nodes.begin(), nodes.end(), node);
  };
  const auto each = nodes.empty() ? 0 : static_cast<std::size_t>(count(nodes.front()));
  if (each == 0) return 0;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    const std::string& node = nodes[rank];
    if (node != nodes[rank - rank % each] || count(node) != static_cast<std::ptrdiff_t>(each)) {
      return 0;
    }
  }
  return static_cast<int>(each);
}

std::string first_host(const std::string& node_list) {
  const std::size_t bracket = node_list.find('[');
  const std::size_t comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return node_list.substr(0, comma);
  const std::size_t end = node_list.find_first_of(",-]", bracket);
  const std::size_t close = node_list.find(']', bracket);
  if (end == std::string::npos || close == std::string::npos) {
    throw UsageError(fmt::format("node list '{}': the bracket is not closed", node_list));
  }
  const std::size_t tail = node_list.find(',', close);
  const std::string suffix =
      node_list.substr(close + 1, tail == std::string::npos ? std::string::npos : tail - close - 1);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1) + suffix;
}

Launch detect_launch(const LaunchFlags& flags, const Environment& environment) {
  const Detection found(environment);
  std::optional<Launch> launch = from_flags(flags);
  if (!launch) launch = from_mpirun(found);
  // Inside a Slurm job srun starts Hydra's proxies, or one torchrun per node: its variables then
  // name these, and not the ranks that they start.
  if (!launch && found.number("MPI_LOCALRANKID")) launch = from_mpich(found);
  if (!launch && !found.text("TORCHELASTIC_RUN_ID").empty()) launch = from_torchrun(found);
  if (!launch) launch = from_srun(found);
  if (!launch) launch = from_mpich(found);
  if (!launch) launch = from_torchrun(found);
  if (!launch) {
    launch.emplace();
    launch->source = "one process";
  }
  const std::string address = found.text("MOESIM_ADDRESS");
  if (!address.empty() && !flags.address) launch->address = address;
  check(*launch);
  return *launch;
}

}  // namespace moesim::kernels::measure
