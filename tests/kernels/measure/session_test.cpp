#include "kernels/measure/sessions/session.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "kernels/measure/ranks/socket.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/profile/profile.hpp"
#include "tests/kernels/measure/fake_machine.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
namespace fs = std::filesystem;
using measure::testing::FakeDevice;
using measure::testing::FakeMachine;
using measure::testing::Folder;
using measure::testing::quick;

TEST_CASE("one GPU: a complete profile, its exchanges as published and said to be missing") {
  const Folder folder;
  FakeMachine machine(1);
  const auto report = measure::profile_node(machine, quick(folder.file("node.json")));
  CHECK(report.run.end == measure::RunEnd::complete);
  CHECK(report.profile_path == folder.file("node.json"));
  CHECK(report.raw_path == folder.file("node.raw.json"));
  const auto profile = moesim::profile::Profile::load(report.profile_path);
  CHECK(profile.name() == "nvidia-h200");
  CHECK(profile.memory(1e8).origin == moesim::profile::Origin::measured);
  CHECK(profile.collective(moesim::profile::Collective::all_to_all, 8, 1e6).origin !=
        moesim::profile::Origin::measured);
  const auto document = nlohmann::json::parse(moesim::read_file(report.profile_path));
  const auto& state = document.at("conditions").at("device_state");
  CHECK(state.at("driver_version") == "580.65.06");
  CHECK(state.at("power_limit_w") == 700);
  CHECK(state.at("throttled_by") == nlohmann::json::array({"power limit"}));
  CHECK(state.at("ecc") == true);
  CHECK(state.at("mig") == false);
  bool said = false;
  for (const auto& missing : profile.missing()) said |= missing.suite == "collectives";
  CHECK(said);
}

TEST_CASE("every suite without a sound point is missing, with the reason, and no other") {
  const Folder folder;
  FakeMachine machine(1);
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"memory", "routing"};
  options.selection.only = {"tokens=1024", "experts=8", "gate"};
  std::string wrong;
  for (const auto& spec : measure::find_suite("routing").points(1)) {
    const std::string label = spec.label() + " ";
    if (label.find("gate") == 0 && label.find("tokens=1024 ") != std::string::npos &&
        label.find("experts=8 ") != std::string::npos) {
      wrong = spec.label();
    }
  }
  REQUIRE_FALSE(wrong.empty());
  machine.prepare = [&](int, FakeDevice& device) {
    device.wrong_before[wrong] = "token 3 goes elsewhere";
  };
  const auto report = measure::profile_node(machine, options);
  std::map<std::string, std::string> reasons;
  for (const auto& gap : report.missing) CHECK(reasons.emplace(gap.suite, gap.reason).second);
  CHECK_THAT(reasons["routing"], ContainsSubstring("wrong"));
  CHECK_THAT(reasons["gemm"], ContainsSubstring("not asked for"));
  CHECK_THAT(reasons["memory"], ContainsSubstring("not asked for"));  // --only left none of it
  for (const char* suite : {"permute", "collectives", "attention", "experts", "layer", "overlap"}) {
    CHECK(reasons.count(suite) == 1);
  }

  const Folder other;
  FakeMachine sound(1);
  auto memory = quick(other.file("node.json"));
  memory.selection.suites = {"memory"};
  for (const auto& gap : measure::profile_node(sound, memory).missing) {
    CHECK(gap.suite != "memory");
  }
}

TEST_CASE("four GPUs of one process: their exchanges are measured together") {
  const Folder folder;
  FakeMachine machine(8);
  auto options = quick(folder.file("node.json"));
  options.gpus = 4;
  options.selection.suites = {"collectives"};
  const auto report = measure::profile_node(machine, options);
  CHECK(report.points == measure::find_suite("collectives").points(4).size());
  const auto profile = moesim::profile::Profile::load(report.profile_path);
  const auto exchange = profile.collective(moesim::profile::Collective::all_to_all, 4, 1 << 26);
  CHECK(exchange.time_us == Approx(12 + 0.75 * (1 << 26) / 0.38e6).epsilon(0.01));
  options.gpus = 9;
  CHECK_THROWS_WITH(measure::profile_node(machine, options), ContainsSubstring("has 8 GPU(s)"));
}

TEST_CASE("nodes with unequal numbers of GPUs: all ranks have one plan, without tiers") {
  const Folder folder;
  constexpr int ranks = 6;
  // 4 on the first node and 2 on the second.
  std::vector<std::vector<std::string>> exchanged(ranks);
  FakeMachine machine(ranks);
  machine.prepare = [](int index, FakeDevice& device) {
    device.device_facts.gpus_in_node = index < 4 ? 4 : 2;
  };
  machine.law = [&exchanged](int index, const measure::PointSpec& spec) {
    exchanged[static_cast<std::size_t>(index)].push_back(spec.label());
    return measure::testing::simple_law(spec);
  };
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"collectives"};
  options.selection.only = {"all-to-all"};
  measure::profile_node(machine, options);
  REQUIRE(exchanged[0].size() > 3);
  for (const auto& each : exchanged) CHECK(each == exchanged[0]);
  for (const std::string& label : exchanged[0]) {
    CHECK(label.find("hierarchical") == std::string::npos);
  }
}

TEST_CASE("processes joined over TCP measure together; rank 0 writes") {
  const Folder folder;
  measure::Launch launch;
  launch.ranks = 3;
  launch.source = "test";
  launch.address = "127.0.0.1:" + std::to_string(21000 + ::getpid() % 9000);
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"collectives"};
  options.selection.only = {"all-gather"};
  std::vector<pid_t> children;
  for (int rank = 1; rank < launch.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 1;
      try {
        FakeMachine machine(3);
        options.launch = launch;
        options.launch.rank = options.launch.local_rank = rank;
        code = measure::profile_node(machine, options).profile_path.empty() ? 0 : 2;
      } catch (const moesim::Error&) {
      }
      ::_exit(code);
    }
    children.push_back(child);
  }
  FakeMachine machine(3);
  options.launch = launch;
  const auto report = measure::profile_node(machine, options);
  CHECK(report.points == 19);  // 4 KiB to 1 GiB
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
}

TEST_CASE("more ranks than GPUs on a node is a mistake of the launch") {
  const Folder folder;
  FakeMachine machine(2);
  auto options = quick(folder.file("node.json"));
  options.launch.ranks = 4;
  options.launch.rank = options.launch.local_rank = 3;
  options.launch.source = "srun";
  options.launch.address = "127.0.0.1:1";
  CHECK_THROWS_WITH(measure::profile_node(machine, options),
                    ContainsSubstring("local rank 3 of srun, but this node has 2 GPU(s)"));
}

TEST_CASE("a timeout writes what there is, and --resume completes it") {
  const Folder folder;
  FakeMachine machine(1);
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"memory"};
  options.timeout_s = 1;
  const auto first = measure::profile_node(machine, options);
  CHECK(first.run.end == measure::RunEnd::timeout);
  CHECK(first.points > 0);
  CHECK(first.points < 54);
  CHECK(first.missing.back().suite == "points");
  CHECK(moesim::profile::Profile::load(first.profile_path).name() == "nvidia-h200");

  options.timeout_s = 0;
  options.resume = true;
  const auto second = measure::profile_node(machine, options);
  CHECK(second.run.resumed == first.run.measured);
  CHECK(second.points == 54);
}

TEST_CASE("if no point could be measured there is no profile") {
  const Folder folder;
  FakeMachine machine(1);
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"memory"};
  options.selection.only = {"rows=1"};
  machine.prepare = [](int, FakeDevice& device) {
    for (const auto& spec : measure::find_suite("memory").points(1)) {
      device.no_memory[spec.label()] = "80 MiB free";
    }
  };
  const auto report = measure::profile_node(machine, options);
  CHECK(report.points == 0);
  CHECK(report.profile_path.empty());
  CHECK_FALSE(fs::exists(options.out));
}

TEST_CASE("a folder that cannot be written is said before anything is measured") {
  FakeMachine machine(1);
  machine.prepare = [](int, FakeDevice&) { FAIL("it began to measure"); };
  CHECK_THROWS_WITH(measure::profile_node(machine, quick("/no/such/folder/node.json")),
                    ContainsSubstring("/no/such/folder"));
}
