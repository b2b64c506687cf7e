#include "kernels/measure/sessions/session.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/profile/profile.hpp"
#include "tests/kernels/measure/fake_machine.hpp"
#include "tests/support/catch.hpp"

// What breaks while a machine is measured: a device, a rank, the disk, a library.
namespace measure = moesim::kernels::measure;
namespace fs = std::filesystem;
using measure::testing::FakeDevice;
using measure::testing::FakeMachine;
using measure::testing::Folder;
using measure::testing::quick;

TEST_CASE("a GPU that fails ends all, with its own reason, and points are kept") {
  const Folder folder;
  FakeMachine machine(2);
  machine.prepare = [](int index, FakeDevice& device) {
    if (index == 1) device.dies_at = 5;
  };
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"collectives"};
  CHECK_THROWS_WITH(measure::profile_node(machine, options),
                    ContainsSubstring("the device is lost"));
  const auto raw = moesim::Document::load(folder.file("node.raw.json"));
  CHECK(raw.root().items("points").size() == 4);
  // They make a profile too, which says what is missing and why.
  const auto profile = moesim::profile::Profile::load(options.out);
  REQUIRE_FALSE(profile.missing().empty());
  CHECK(profile.missing().back().suite == "points");
  CHECK_THAT(profile.missing().back().reason, ContainsSubstring("rank 1 is gone"));
}

TEST_CASE("a rank that fails leaves the group before its device ends, which waits for the others") {
  const Folder folder;
  std::atomic<bool> other_ended{false}, waited_in_vain{false};
  FakeMachine machine(2);
  machine.prepare = [&](int index, FakeDevice& device) {
    if (index == 0) {
      device.at_end = [&] { other_ended = true; };
      return;
    }
    device.dies_at = 2;
    // As the end of a communicator may: nothing goes on until the other rank's has ended too.
    device.at_end = [&] {
      for (int tries = 0; tries < 6000 && !other_ended; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      waited_in_vain = !other_ended;
    };
  };
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"collectives"};
  // The failure of the rank that failed, though the other one ended first.
  CHECK_THROWS_AS(measure::profile_node(machine, options), measure::DeviceFailed);
  CHECK(other_ended);
  CHECK_FALSE(waited_in_vain);
}

TEST_CASE("a device that dies in one suite leaves a profile of those before it") {
  const Folder folder;
  FakeMachine machine(1);
  const std::size_t memory_points = measure::find_suite("memory").points(1).size();
  machine.prepare = [&](int, FakeDevice& device) { device.dies_at = memory_points + 2; };
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"memory", "permute"};
  std::vector<std::string> notes;
  options.on_note = [&notes](const std::string& text) { notes.push_back(text); };
  CHECK_THROWS_WITH(measure::profile_node(machine, options), ContainsSubstring("is lost"));
  CHECK(moesim::profile::Profile::load(options.out).memory(1e8).origin ==
        moesim::profile::Origin::measured);
  REQUIRE_FALSE(notes.empty());
  CHECK_THAT(notes.back(), ContainsSubstring("55 points measured before"));
  // The point that killed it is passed over, the rest is measured.
  machine.prepare = nullptr;
  options.resume = true;
  const auto rest = measure::profile_node(machine, options);
  CHECK(rest.points == memory_points + measure::find_suite("permute").points(1).size() - 1);
}

TEST_CASE("without NCCL the exchanges are missing, with its words, and the rest is measured") {
  const Folder folder;
  FakeMachine machine(2);
  machine.prepare = [](int, FakeDevice& device) {
    device.not_measurable = "rank 1: NCCL is missing (libnccl.so.2: cannot open)";
  };
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"memory", "collectives"};
  const auto report = measure::profile_node(machine, options);
  CHECK(report.run.end == measure::RunEnd::complete);
  CHECK(report.points == measure::find_suite("memory").points(2).size());
  bool said = false;
  for (const auto& gap : report.missing) {
    said |= gap.suite == "collectives" && gap.reason.find("NCCL is missing") != std::string::npos;
  }
  CHECK(said);
}

TEST_CASE("ranks that share a GPU measure the path, calibrate nothing, and it is said") {
  const Folder folder;
  FakeMachine machine(2);
  machine.prepare = [](int, FakeDevice& device) { device.shared = true; };
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"collectives"};
  const auto report = measure::profile_node(machine, options);
  CHECK(report.points == measure::find_suite("collectives").points(2).size());
  bool said = false;
  for (const auto& gap : report.missing) {
    said |= gap.suite == "collectives" && gap.reason.find("synthetic") != std::string::npos;
  }
  CHECK(said);
  const auto profile = moesim::profile::Profile::load(report.profile_path);
  CHECK(profile.collective(moesim::profile::Collective::all_to_all, 2, 1e6).origin !=
        moesim::profile::Origin::measured);
}

namespace {

// A rank in a process of its own; its exit code is that of `moesim profile`.
pid_t rank_of(const measure::SessionOptions& base, int rank, int ranks, const std::string& address,
              const std::function<void(FakeDevice&)>& prepare, const std::string& log) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  measure::SessionOptions options = base;
  options.launch.rank = options.launch.local_rank = rank;
  options.launch.ranks = ranks;
  options.launch.address = address;
  options.launch.source = "test";
  const auto write = [&log](const std::string& text) {
    std::ofstream(log, std::ios::app) << text << "\n" << std::flush;
  };
  options.on_note = write;
  options.give_up = [&write](const std::string& text, moesim::ExitCode code) {
    write(text);
    ::_exit(static_cast<int>(code));
  };
  int code = 0;
  try {
    FakeMachine machine(ranks);
    machine.prepare = [&prepare](int, FakeDevice& device) { prepare(device); };
    measure::profile_node(machine, options);
  } catch (const moesim::Error& error) {
    write(error.what());
    code = static_cast<int>(error.code());
  }
  ::_exit(code);
}

int exit_code(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string loopback() { return "127.0.0.1:" + std::to_string(21000 + ::getpid() % 9000); }

}  // namespace

TEST_CASE("a rank that hangs: at the timeout the others say which and where, points are kept") {
  const Folder folder;
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"collectives"};
  options.selection.only = {"all-gather"};
  options.timeout_s = 20;  // with five builds beside it, 8 s did not bring it to the exchange
  options.grace_s = 0;
  const auto sound = [](FakeDevice&) {};
  const auto hangs = [](FakeDevice& device) { device.hangs_at = 3; };
  const pid_t first = rank_of(options, 0, 2, loopback(), sound, folder.file("log0"));
  options.timeout_s += 2;  // the rank that hangs must not be gone before the other says so
  const pid_t second = rank_of(options, 1, 2, loopback(), hangs, folder.file("log1"));
  CHECK(exit_code(first) == 124);
  CHECK(exit_code(second) == 124);
  CHECK_THAT(moesim::read_file(folder.file("log0")),
             ContainsSubstring("rank 0 of 2") && ContainsSubstring("all-gather gpus=2") &&
                 ContainsSubstring("warm-up'") && ContainsSubstring("waiting for rank 1"));
  CHECK_THAT(moesim::read_file(folder.file("log1")), ContainsSubstring("rank 1 of 2"));
  const auto raw = moesim::Document::load(folder.file("node.raw.json"));
  CHECK(raw.root().items("points").size() == 2);
}

namespace {

// All-gathers alone, with ranks that are soon given up.
auto one_exchange(const Folder& folder) {
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"collectives"};
  options.selection.only = {"all-gather"};
  options.silence_s = 0.4;
  options.lost_s = 0.5;
  return options;
}

}  // namespace

TEST_CASE("a rank that dies while another is stuck in an exchange ends that one too") {
  const Folder folder;
  const auto options = one_exchange(folder);
  // As in NCCL: rank 0 is inside the exchange when rank 1 dies without a word.
  const auto stuck = [](FakeDevice& device) { device.hangs_at = 2; };
  const auto dies = [](FakeDevice& device) {
    device.clock_of_run = [&device](std::size_t) -> double {
      if (device.prepared == 2) ::_exit(9);
      return 1980;
    };
  };
  const pid_t first = rank_of(options, 0, 2, loopback(), stuck, folder.file("log0"));
  const pid_t second = rank_of(options, 1, 2, loopback(), dies, folder.file("log1"));
  CHECK(exit_code(second) == 9);
  CHECK(exit_code(first) == 1);
  CHECK_THAT(moesim::read_file(folder.file("log0")), ContainsSubstring("rank 1 is gone"));
  CHECK(moesim::Document::load(folder.file("node.raw.json")).root().items("points").size() == 1);
}

TEST_CASE("a rank that fails and cannot end its communicator ends the others, and then itself") {
  const Folder folder;
  const auto options = one_exchange(folder);
  // As in NCCL: rank 0 is inside the exchange, and the end of rank 1's communicator waits for it.
  const auto stuck = [](FakeDevice& device) { device.hangs_at = 2; };
  const auto fails = [](FakeDevice& device) {
    device.out_of_memory_at = 2;
    device.at_end = [] { std::this_thread::sleep_for(std::chrono::seconds(30)); };
  };
  const pid_t first = rank_of(options, 0, 2, loopback(), stuck, folder.file("log0"));
  const pid_t second = rank_of(options, 1, 2, loopback(), fails, folder.file("log1"));
  const auto began = std::chrono::steady_clock::now();
  CHECK(exit_code(first) == 1);
  CHECK(exit_code(second) == 1);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(20));
  CHECK_THAT(moesim::read_file(folder.file("log0")), ContainsSubstring("rank 1 is gone"));
  CHECK_THAT(moesim::read_file(folder.file("log1")),
             ContainsSubstring("rank 0 is gone") && ContainsSubstring("leaving the other ranks"));
}

TEST_CASE("a disk that fills up: the error names the file, earlier points are whole") {
  const Folder folder;
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"memory"};
  const pid_t child = ::fork();
  if (child == 0) {
    // Files of this process end at 20,000 bytes, as on a full disk.
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{20'000, 20'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 0;
    try {
      FakeMachine machine(1);
      measure::profile_node(machine, options);
    } catch (const moesim::Error& error) {
      const bool said =
          std::string(error.what()).find("node.raw.json: cannot write") == 0 ||
          std::string(error.what()).find("/node.raw.json: cannot write") != std::string::npos;
      code = said ? static_cast<int>(error.code()) : 98;
    }
    ::_exit(code);
  }
  CHECK(exit_code(child) == 1);
  const auto raw = moesim::Document::load(folder.file("node.raw.json"));
  CHECK(raw.root().items("points").size() > 2);
  CHECK(raw.root().items("points").size() < 54);
  for (const auto& entry : fs::directory_iterator(fs::path(options.out).parent_path())) {
    CHECK(entry.path().extension() != ".tmp");
  }
  // With room again it goes on.
  options.resume = true;
  FakeMachine machine(1);
  CHECK(measure::profile_node(machine, options).points == 54);
}

TEST_CASE("no memory left in the middle of an exchange ends the run with that reason") {
  const Folder folder;
  FakeMachine machine(2);
  machine.prepare = [](int index, FakeDevice& device) {
    if (index == 1) device.out_of_memory_at = 3;
  };
  auto options = quick(folder.file("node.json"));
  options.selection.suites = {"collectives"};
  CHECK_THROWS_WITH(measure::profile_node(machine, options),
                    ContainsSubstring("in the middle of an exchange"));
}
