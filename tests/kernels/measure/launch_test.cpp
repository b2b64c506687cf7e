#include "kernels/measure/ranks/launch.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
using measure::Launch;

namespace {

using Variables = std::map<std::string, std::string>;

Launch detect(const Variables& variables, const measure::LaunchFlags& flags = {}) {
  return measure::detect_launch(
      flags, [&variables](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      });
}

const Variables mpirun{{"OMPI_COMM_WORLD_RANK", "3"},
                       {"OMPI_COMM_WORLD_SIZE", "8"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "8"},
                       {"PMIX_NAMESPACE", "prterun-node-1@1"}};
const Variables srun{{"SLURM_PROCID", "9"},         {"SLURM_STEP_NUM_TASKS", "16"},
                     {"SLURM_LOCALID", "1"},        {"SLURM_STEP_ID", "0"},
                     {"SLURM_JOB_ID", "4711"},      {"SLURM_STEP_NODELIST", "gpu[03-04]"},
                     {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_NTASKS", "16"}};
const Variables torchrun{{"RANK", "1"},           {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29500"}};

const Variables mpich{
    {"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}};

}  // namespace

TEST_CASE("without a launcher it is one process") {
  const Launch launch = detect({});
  CHECK(launch.ranks == 1);
  CHECK(launch.rank == 0);
  CHECK(launch.source == "one process");
}

TEST_CASE("mpirun on one node needs no address") {
  const Launch launch = detect(mpirun);
  CHECK(launch.source == "mpirun");
  CHECK(launch.rank == 3);
  CHECK(launch.ranks == 8);
  CHECK(launch.local_rank == 3);
  CHECK(launch.address.starts_with("127.0.0.1:"));
  Variables other = mpirun;
  other["PMIX_NAMESPACE"] = "prterun-node-1@2";
  CHECK(detect(other).address != launch.address);
}

TEST_CASE("mpirun over nodes is told the address") {
  Variables nodes = mpirun;
  nodes["OMPI_COMM_WORLD_LOCAL_SIZE"] = "4";
  CHECK_THROWS_WITH(detect(nodes), ContainsSubstring("MOESIM_ADDRESS"));
  nodes["MOESIM_ADDRESS"] = "node-1:5000";
  CHECK(detect(nodes).address == "node-1:5000");
}

TEST_CASE("srun names the first node of the step") {
  const Launch launch = detect(srun);
  CHECK(launch.source == "srun");
  CHECK(launch.rank == 9);
  CHECK(launch.ranks == 16);
  CHECK(launch.local_rank == 1);
  CHECK(launch.local_ranks == 8);
  CHECK(launch.address.starts_with("gpu03:"));
}

TEST_CASE("a batch script is no step: it would wait for peers that never come") {
  Variables batch = srun;
  batch.erase("SLURM_STEP_ID");
  CHECK(detect(batch).ranks == 1);
}

TEST_CASE("torchrun's own port is left to torchrun") {
  const Launch launch = detect(torchrun);
  CHECK(launch.source == "torchrun");
  CHECK(launch.rank == 1);
  CHECK(launch.local_ranks == 2);
  CHECK(launch.address == "head:29517");
}

TEST_CASE("mpiexec of MPICH and Intel MPI is known by PMI_RANK and MPI_LOCALRANKID") {
  CHECK_THROWS_WITH(detect(mpich), ContainsSubstring("MOESIM_ADDRESS"));  // two nodes
  Variables variables = mpich;
  variables["MOESIM_ADDRESS"] = "node-1:5000";
  const Launch launch = detect(variables);
  CHECK(launch.source == "mpiexec");
  CHECK(launch.rank == 5);
  CHECK(launch.ranks == 8);
  CHECK(launch.local_rank == 1);
  CHECK(launch.local_ranks == 4);
  variables = mpich;
  variables["MPI_LOCALNRANKS"] = "8";
  CHECK(detect(variables).address.starts_with("127.0.0.1:"));
  variables.erase("MPI_LOCALRANKID");
  CHECK_THROWS_WITH(detect(variables), ContainsSubstring("MPI_LOCALRANKID"));
  variables.insert(srun.begin(), srun.end());  // sets PMI_RANK too
  CHECK(detect(variables).source == "srun");
}

TEST_CASE("what srun started once per node is not taken for the ranks that this starts") {
  Variables hydra = mpich;
  hydra["MPI_LOCALNRANKS"] = "8";
  hydra.insert(srun.begin(), srun.end());
  CHECK(detect(hydra).source == "mpiexec");
  CHECK(detect(hydra).rank == 5);
  Variables elastic = torchrun;
  elastic.insert(srun.begin(), srun.end());
  CHECK(detect(elastic).source == "srun");  // RANK exported by a batch script
  elastic["TORCHELASTIC_RUN_ID"] = "none";
  CHECK(detect(elastic).source == "torchrun");
  CHECK(detect(elastic).rank == 1);
}

TEST_CASE("a process that sees one GPU takes it, whatever its local rank") {
  const Launch third = detect(srun);  // local rank 1
  CHECK(measure::device_of(third, 8) == 1);
  CHECK(measure::device_of(third, 1) == 0);  // srun --gpus-per-task=1
  Launch fourth = third;
  fourth.local_rank = 3;
  CHECK_THROWS_WITH(measure::device_of(fourth, 2),
                    ContainsSubstring("local rank 3 of srun, but this node has 2 GPU(s)"));
  // Both narrowed to the same GPU: a node of one GPU with two ranks.
  CHECK_NOTHROW(measure::check_own_devices({"GPU-a", "GPU-b"}, {false, true}));
  CHECK_NOTHROW(measure::check_own_devices({"", ""}, {false, true}));
  // As two ranks that share a GPU on purpose are started (--local-rank 0 for both).
  CHECK_NOTHROW(measure::check_own_devices({"GPU-a", "GPU-a"}, {false, false}));
  CHECK_THROWS_WITH(measure::check_own_devices({"GPU-a", "GPU-b", "GPU-a"}, {false, true, true}),
                    ContainsSubstring("ranks 0 and 2 both see GPU-a"));
}

TEST_CASE("machines of equal names are told apart by their boot") {
  const std::string folder = std::filesystem::temp_directory_path().string();
  const std::string one = folder + "/moesim-boot-" + std::to_string(::getpid());
  const std::string other = one + "-other";
  std::ofstream(one) << "1c5ba55f\n";
  std::ofstream(other) << "83f0c02e\n";
  CHECK(measure::machine_identity("localhost", one) == measure::machine_identity("localhost", one));
  CHECK(measure::machine_identity("localhost", one) !=
        measure::machine_identity("localhost", other));
  CHECK(measure::machine_identity("gpu03", "/no/such/file") == "gpu03");
  std::filesystem::remove(one);
  std::filesystem::remove(other);
}

TEST_CASE("flags come before the environment, mpirun before srun before torchrun") {
  measure::LaunchFlags flags;
  flags.rank = 1;
  flags.ranks = 2;
  flags.address = "here:9000";
  Variables all = mpirun;
  all.insert(srun.begin(), srun.end());
  all.insert(torchrun.begin(), torchrun.end());
  CHECK(detect(all, flags).source == "flags");
  CHECK(detect(all, flags).address == "here:9000");
  CHECK(detect(all).source == "mpirun");
  for (const auto& [name, value] : mpirun) all.erase(name);
  CHECK(detect(all).source == "srun");
}

TEST_CASE("what is missing or wrong is named") {
  measure::LaunchFlags flags;
  flags.rank = 0;
  CHECK_THROWS_WITH(detect({}, flags), ContainsSubstring("--ranks"));
  flags.ranks = 2;
  flags.address = "here";
  CHECK_THROWS_WITH(detect({}, flags), ContainsSubstring("HOST:PORT"));
  for (const char* address : {"here:", "here:0", "here:70000", "here:12x", ":99"}) {
    flags.address = address;
    CAPTURE(address);
    CHECK_THROWS_AS(detect({}, flags), moesim::UsageError);
  }
  flags.address = "here:99";
  flags.rank = 2;
  CHECK_THROWS_WITH(detect({}, flags), ContainsSubstring("rank 2 of 2"));
  Variables broken = mpirun;
  broken.erase("OMPI_COMM_WORLD_SIZE");
  CHECK_THROWS_WITH(detect(broken), ContainsSubstring("OMPI_COMM_WORLD_SIZE is not"));
  broken = srun;
  broken["SLURM_PROCID"] = "two";
  CHECK_THROWS_WITH(detect(broken), ContainsSubstring("SLURM_PROCID=two"));
  broken = torchrun;
  broken["RANK"] = "-1";
  CHECK_THROWS_WITH(detect(broken), ContainsSubstring("RANK=-1"));
}

TEST_CASE("the first host of a Slurm node list") {
  CHECK(measure::first_host("node7") == "node7");
  CHECK(measure::first_host("a,b[1-3]") == "a");
  CHECK(measure::first_host("gpu[03-05,9]") == "gpu03");
  CHECK(measure::first_host("gpu[12,14-15],other1") == "gpu12");
  CHECK(measure::first_host("rack[2-4]-gpu") == "rack2-gpu");
  CHECK_THROWS_AS(measure::first_host("gpu[03"), moesim::UsageError);
}

TEST_CASE("ranks per node are known where the nodes have equally many, one after the other") {
  CHECK(measure::ranks_per_node({"a", "a", "b", "b"}) == 2);
  CHECK(measure::ranks_per_node({"a", "b", "c"}) == 1);
  CHECK(measure::ranks_per_node({"a", "a", "a"}) == 3);
  CHECK(measure::ranks_per_node({"a", "a", "b"}) == 0);
  CHECK(measure::ranks_per_node({"a", "b", "b"}) == 0);
  CHECK(measure::ranks_per_node({"a", "a", "b", "b", "b", "b"}) == 0);
  CHECK(measure::ranks_per_node({"a", "b", "a", "b"}) == 0);
  CHECK(measure::ranks_per_node({"a", "a", "b", "c"}) == 0);
}

TEST_CASE("GPUs are counted without CUDA, by what it may show or by their files") {
  std::string folder = (std::filesystem::temp_directory_path() / "moesim-dev-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  for (const char* name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia",
                           "nvidia2x", "null"}) {
    std::ofstream{std::filesystem::path(folder) / name};
  }
  const auto visible = [&folder](const Variables& variables, const std::string& devices) {
    return measure::visible_gpus(
        [&variables](const std::string& name) -> std::optional<std::string> {
          const auto found = variables.find(name);
          return found == variables.end() ? std::nullopt : std::optional(found->second);
        },
        devices.empty() ? folder : devices);
  };
  CHECK(visible({}, "") == 3);
  CHECK(visible({}, "/no/such/folder") == 0);
  CHECK(visible({{"CUDA_VISIBLE_DEVICES", "1"}}, "") == 1);
  CHECK(visible({{"CUDA_VISIBLE_DEVICES", "GPU-1b2c,GPU-3d4e"}}, "") == 2);
  std::filesystem::remove_all(folder);
}
