#include "sim/profile/nccl_tests/log.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/text.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
namespace fs = std::filesystem;

namespace {

constexpr const char* output =
    "# Collective test starting: alltoall_perf\n"
    "# nccl-library=22703\n"
    "#  Rank  0 Group  0 Pid 41 on a device  0 [0x1b] NVIDIA H100\n"
    "#  Rank  1 Group  0 Pid 42 on a device  1 [0x2c] NVIDIA H100\n"
    "#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    "  1024 512 bfloat16 none -1 45.01 0.02 0.01 0 N/A N/A N/A N/A\n"
    "  4194304 2097152 bfloat16 none -1 103.25 40.62 20.31 0 N/A N/A N/A N/A\n"
    "# Out of bounds values : 0 OK\n";

std::vector<profile::NcclTestsRun> runs_of(const std::string& text,
                                           const std::string& ending = ".log") {
  std::string name = (fs::temp_directory_path() / ("moesim-nccl-tests-XXXXXX" + ending)).string();
  const int made = ::mkstemps(name.data(), static_cast<int>(ending.size()));
  REQUIRE(made >= 0);
  ::close(made);
  const auto remove = [](const std::string* file) { fs::remove(*file); };
  const std::unique_ptr<std::string, decltype(remove)> removed(&name, remove);
  write_file_atomically(name, text);
  return profile::read_nccl_tests_log(name);
}

// The output with `prefix` before each line.
std::string prefixed(const std::string& prefix) {
  std::string text;
  for (const std::string_view line : split(output, '\n')) {
    if (!line.empty()) text.append(prefix).append(line).append("\n");
  }
  return text;
}

// The output without the lines that begin so.
std::string text_without(std::string_view start) {
  std::string text;
  for (const std::string_view line : split(output, '\n')) {
    if (!line.empty() && !line.starts_with(start)) text.append(line).append("\n");
  }
  return text;
}

}  // namespace

TEST_CASE("output of nccl-tests is read behind the prefixes of mpirun and srun") {
  for (const char* prefix :
       {"", "0: ", " 12: ", "\t3: ", "[1,0]:", "[12,345]<stdout>:", "[1,0]<stderr>:"}) {
    INFO("prefix '" << prefix << "'");
    const std::vector<profile::NcclTestsRun> runs = runs_of(prefixed(prefix));
    REQUIRE(runs.size() == 1);
    CHECK(runs[0].operation == "all-to-all");
    CHECK(runs[0].nccl == "2.27.3");
    CHECK(runs[0].gpus == 2);
    REQUIRE(runs[0].rows.size() == 2);
    CHECK(runs[0].rows[1].bytes == 4194304);
    CHECK(runs[0].rows[1].time_us == 103.25);
  }
}

TEST_CASE("what only looks like a prefix of mpirun or srun stays in the line") {
  for (const char* prefix : {":", "0:", "x: ", "[1,0]<stdin>:", "[1]:", "[,0]:", "[1,0]",
                             "[1,0]<stdout><stderr>:", "[1,0"}) {
    INFO("prefix '" << prefix << "'");
    CHECK_THROWS_AS(runs_of(prefixed(prefix)), UsageError);
  }
}

TEST_CASE("a folder that is called like a program is none") {
  // Before 2.17 nothing but a command line among the output names the program.
  const std::string before = text_without("# Collective test starting");
  for (const char* command :
       {"mpirun -np 2 /home/me/nccl_perf/build/alltoall_perf -b 1K\n",
        "+ mpirun -np 2 /opt/my_perf-2.13/alltoall_perf -b 1K\n", "time ./alltoall_perf -b 1K\n"}) {
    INFO(command);
    CHECK(runs_of(command + before).at(0).program == "alltoall_perf");
  }
}

TEST_CASE("a run of nccl-tests that did not come to its end is in doubt") {
  const auto doubts = [](const std::string& text) { return runs_of(text).at(0).doubts; };
  const std::string broken = text_without("# Out of bounds");
  CHECK(doubts(output).empty());
  REQUIRE(doubts(broken).size() == 1);
  CHECK_THAT(doubts(broken)[0], ContainsSubstring("line 7: no 'Avg bus bandwidth' line") &&
                                    ContainsSubstring("its output is cut off"));
  const std::string crash = " .. node0 pid 41: Test failure common.cu:844\n";
  REQUIRE(doubts(broken + crash).size() == 1);
  CHECK_THAT(doubts(broken + crash)[0],
             ContainsSubstring("the run failed (line 8:  .. node0 pid 41"));
  // Each of several runs in one file ends by itself.
  const std::vector<profile::NcclTestsRun> two = runs_of(broken + output);
  REQUIRE(two.size() == 2);
  CHECK(two[0].doubts.size() == 1);
  CHECK(two[1].doubts.empty());
}

TEST_CASE("a prefix that log collectors write is named") {
  for (const char* prefix : {"worker-0: ", "2025-01-02T10:11:12.123456789Z ", "[12:00:00] "}) {
    CHECK_THROWS_WITH(runs_of(prefixed(prefix)),
                      ContainsSubstring(std::string("lines have '") + prefix + "' before what"));
  }
  CHECK_THROWS_WITH(runs_of("# nothing\n"), ContainsSubstring("this is no output of nccl-tests"));
}

TEST_CASE("a document of nccl-tests says how the run ended") {
  const auto run = [](const std::string& in_place, const std::string& end,
                      const std::string& config = "") {
    return runs_of(R"({"config": {)" + config +
                       R"("devices": [{"rank": 0, "hostname": "a", "device_info": "H"},)"
                       R"({"rank": 1, "hostname": "a", "device_info": "H"}]}, "results": [)"
                       R"({"type": "half", "size": 9000, "out_of_place": {"time": 9, "alg_bw": 1,)"
                       R"("bus_bw": 1, "nwrong": 0}, "in_place": {"nwrong": )" +
                       in_place + "}}]" + end + "}",
                   ".json")
        .at(0);
  };
  const std::string good = R"(, "out_of_bounds": {"count": 0, "okay": "true"}, "errors": [""])";
  CHECK(run("null", good).doubts.empty());
  CHECK_THROWS_WITH(run("3", good), ContainsSubstring("/in_place/nwrong: wrong values"));
  CHECK_THROWS_WITH(run("0", R"(, "out_of_bounds": {"count": 8, "okay": "false"})"),
                    ContainsSubstring("/out_of_bounds/count: 8 values out of bounds"));
  REQUIRE(run("0", "").doubts.size() == 1);
  CHECK_THAT(run("0", "").doubts[0], ContainsSubstring("no \"out_of_bounds\" after"));
  const std::string failed = R"(, "out_of_bounds": {"count": 0}, "errors": ["remote error"])";
  REQUIRE(run("0", failed).doubts.size() == 1);
  CHECK_THAT(run("0", failed).doubts[0], ContainsSubstring("NCCL's last error: remote error"));
  for (const auto& [config, part] :
       {std::pair(R"("aggregated_iterations": 100, )", "100 operations in one group (-m)"),
        std::pair(R"("graph": 10, )", "10 operations in one CUDA graph (-G)")}) {
    REQUIRE(run("0", good, config).doubts.size() == 1);
    CHECK_THAT(run("0", good, config).doubts[0], ContainsSubstring(part));
  }
}

TEST_CASE("a document of nccl-tests with numbers that no run has is refused") {
  const auto message = [](const std::string& threads, const std::string& gpus,
                          const std::string& size) -> std::string {
    const std::string device = R"("device": 0, "device_info": "NVIDIA H100"})";
    const std::string times = R"("out_of_place": {"time": 9, "alg_bw": 1, "bus_bw": 1}}]})";
    try {
      const auto runs =
          runs_of(R"({"config": {"nthreads": )" + threads + R"(, "ngpus": )" + gpus +
                      R"(, "devices": [{"rank": 0, "hostname": "a", )" + device +
                      R"(, {"rank": 8, "hostname": "b", )" + device +
                      R"(]}, "results": [{"type": "half", "size": )" + size + ", " + times,
                  ".json");
      return std::to_string(runs.at(0).gpus);
    } catch (const UsageError& error) {
      return error.what();
    }
  };
  CHECK(message("1", "8", "1024") == "16");
  CHECK(message("1", "4", "1024") == "2");
  // Their product is none of 64 bits, or none of 32.
  CHECK_THAT(message("4000000000000000000", "4", "1024"), ContainsSubstring("/config/nthreads: "));
  CHECK_THAT(message("1", "-8", "1024"), ContainsSubstring("/config/ngpus: "));
  CHECK(message("2147483647", "2147483647", "1024") == "2");
  CHECK_THAT(message("1", "8", "1e300"), ContainsSubstring("a size of 1e+300 bytes"));
}
