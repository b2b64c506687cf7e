#include "kernels/measure/sessions/runner.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "kernels/measure/suites/collectives.hpp"
#include "sim/base/file.hpp"
#include "tests/kernels/measure/fake_device.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
namespace fs = std::filesystem;
using measure::testing::FakeDevice;
using measure::testing::simple_law;

namespace {

// A folder that goes with the test.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "moesim-measure-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;  // a second owner would remove it early
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

const measure::RunIdentity identity{"0.1.0", "NVIDIA H200", 1};

measure::Plan small_plan(int gpus = 1) {
  measure::Selection selection;
  selection.suites = gpus > 1 ? std::vector<std::string>{"memory", "collectives"}
                              : std::vector<std::string>{"memory"};
  selection.gpus = gpus;
  measure::Plan plan = measure::make_plan(selection, 1, {});
  std::erase_if(plan.points, [](const auto& planned) { return planned.spec.bytes > 1e6; });
  return plan;
}

measure::RunReport run(FakeDevice& device, measure::RawDocument& raw,
                       const measure::Plan& plan = small_plan(),
                       const measure::RunOptions& options = {}) {
  measure::SoloGroup group;
  return measure::run_plan(device, group, plan, &raw, options);
}

}  // namespace

TEST_CASE("a run measures every point once and keeps all samples in its document") {
  const Folder folder;
  FakeDevice device(simple_law);
  measure::RawDocument raw(folder.file("node.raw.json"), identity, false);
  const auto plan = small_plan();
  const auto report = run(device, raw, plan);
  CHECK(report.end == measure::RunEnd::complete);
  CHECK(report.measured == plan.points.size());
  REQUIRE(plan.points.size() > 10);

  const measure::RawDocument again(folder.file("node.raw.json"), identity, true);
  REQUIRE(again.points().size() == plan.points.size());
  for (std::size_t index = 0; index < plan.points.size(); ++index) {
    CHECK(again.has(plan.points[index].spec.key()));
    const measure::Point& before = raw.points()[index];
    const measure::Point& after = again.points()[index];
    CHECK(before.key() == after.key());
    CHECK(after.cold->samples.size() == before.cold->samples.size());
    CHECK(after.cold->summary.median == Approx(before.cold->summary.median).epsilon(1e-6));
    CHECK(after.hot->calls == before.hot->calls);
    CHECK(after.cold->stop == before.cold->stop);
  }
}

TEST_CASE("a device that dies costs one point; --resume measures the rest") {
  const Folder folder;
  const auto plan = small_plan();
  {
    FakeDevice device(simple_law);
    device.dies_at = 7;
    measure::RawDocument raw(folder.file("raw.json"), identity, false);
    CHECK_THROWS_WITH(run(device, raw, plan), ContainsSubstring("the device is lost"));
  }
  FakeDevice device(simple_law);
  measure::RawDocument raw(folder.file("raw.json"), identity, true);
  REQUIRE(raw.points().size() == 7);  // six, and the one it died in, which is void
  CHECK_THAT(raw.points().back().verify, ContainsSubstring("the device is lost"));
  CHECK(raw.points().back().key() == plan.points[6].spec.key());
  const auto report = run(device, raw, plan);
  CHECK(report.resumed == 7);
  CHECK(report.measured == plan.points.size() - 7);
  CHECK(device.prepared == plan.points.size() - 7);
  CHECK(raw.points().size() == plan.points.size());
}

TEST_CASE("a point that takes the process down is void for --resume, and others are not") {
  const Folder folder;
  const auto plan = small_plan();
  const pid_t child = ::fork();
  if (child == 0) {
    FakeDevice device(simple_law);
    const auto fourth = plan.points[3].spec.label();
    device.clock_of_run = [&](std::size_t) -> double {
      if (device.prepared == 4) ::_exit(9);  // as a kernel that brings the driver down
      return 1980;
    };
    measure::RawDocument raw(folder.file("raw.json"), identity, false);
    run(device, raw, plan);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WEXITSTATUS(status) == 9);

  FakeDevice device(simple_law);
  measure::RawDocument raw(folder.file("raw.json"), identity, true);
  CHECK(raw.points().size() == 3);
  CHECK(raw.fatal_key() == plan.points[3].spec.key());
  const auto report = run(device, raw, plan);
  CHECK(device.prepared == plan.points.size() - 4);
  REQUIRE(report.voided.size() == 1);
  CHECK_THAT(report.voided[0], ContainsSubstring("the process ended while it was measured"));
  // Once it is known it is not said again.
  measure::RawDocument once_more(folder.file("raw.json"), identity, true);
  CHECK(once_more.fatal_key().empty());
  CHECK(run(device, once_more, plan).voided.empty());
  // A fresh start forgets it.
  measure::RawDocument fresh(folder.file("raw.json"), identity, false);
  CHECK(run(device, fresh, plan).measured == plan.points.size());
}

TEST_CASE("points of another device or version are not taken over") {
  const Folder folder;
  FakeDevice device(simple_law);
  measure::RawDocument raw(folder.file("raw.json"), identity, false);
  run(device, raw);
  CHECK_THROWS_WITH(measure::RawDocument(raw.path(), {"0.1.0", "NVIDIA A100-SXM4-80GB", 1}, true),
                    ContainsSubstring("NVIDIA A100-SXM4-80GB") && ContainsSubstring("--resume"));
  CHECK_THROWS_WITH(measure::RawDocument(raw.path(), {"0.2.0", "NVIDIA H200", 1}, true),
                    ContainsSubstring("/tool_version"));
  CHECK_THROWS_WITH(measure::RawDocument(raw.path(), {"0.1.0", "NVIDIA H200", 8}, true),
                    ContainsSubstring("/gpus"));
}

TEST_CASE("a torn or foreign document is refused with its place") {
  const Folder folder;
  moesim::write_file_atomically(folder.file("torn.json"), "{\"format\":\"moesim-raw-points\"");
  CHECK_THROWS_WITH(measure::RawDocument(folder.file("torn.json"), identity, true),
                    ContainsSubstring("torn.json"));
  moesim::write_file_atomically(folder.file("other.json"),
                                R"({"format": "else", "version": 1, "points": []})");
  CHECK_THROWS_WITH(measure::RawDocument(folder.file("other.json"), identity, true),
                    ContainsSubstring("/format"));
  CHECK_THROWS_WITH(measure::RawDocument(folder.file("no/such/raw.json"), identity, false),
                    ContainsSubstring("no/such"));
}

TEST_CASE("what does not fit in memory is skipped and said; a wrong result is void and said") {
  const Folder folder;
  FakeDevice device(simple_law);
  const auto plan = small_plan();
  device.no_memory[plan.points[1].spec.label()] = "3 GiB asked, 1 GiB free";
  device.no_memory[plan.points[2].spec.label()] = "3 GiB asked, 1 GiB free";
  device.wrong_after[plan.points[4].spec.label()] = "row 3 is not normalised";
  std::vector<std::string> notes;
  measure::RunOptions options;
  options.on_note = [&notes](const std::string& text) { notes.push_back(text); };
  measure::RawDocument raw(folder.file("raw.json"), identity, false);
  const auto report = run(device, raw, plan, options);
  CHECK(report.measured == plan.points.size() - 2);
  REQUIRE(report.missing.size() == 1);
  CHECK_THAT(report.missing[0].reason, ContainsSubstring("3 GiB asked") &&
                                           ContainsSubstring(plan.points[1].spec.label()) &&
                                           ContainsSubstring("and others"));
  REQUIRE(report.voided.size() == 1);
  CHECK_THAT(report.voided[0], ContainsSubstring("row 3 is not normalised"));
  CHECK(notes.size() == 3);
  CHECK_FALSE(raw.points()[2].valid());  // the third that was measured: 1 and 2 were skipped
}

TEST_CASE("no point is begun that would not end in time") {
  const Folder folder;
  FakeDevice device(simple_law);
  measure::RunOptions options;
  options.timeout_s = 2;
  measure::RawDocument raw(folder.file("raw.json"), identity, false);
  const auto plan = small_plan();
  const auto report = run(device, raw, plan, options);
  CHECK(report.end == measure::RunEnd::timeout);
  CHECK(report.measured > 2);
  CHECK(report.measured < plan.points.size());
  CHECK(device.now_s() < 2);
  CHECK(raw.points().size() == report.measured);
}

TEST_CASE("an interrupt ends the run after the point under way") {
  const Folder folder;
  FakeDevice device(simple_law);
  std::atomic<bool> interrupted{false};
  measure::RunOptions options;
  options.interrupted = &interrupted;
  std::size_t seen = 0;
  options.on_progress = [&](const measure::RunProgress& progress) {
    if (progress.done == 3) interrupted = true;
    seen = progress.done;
  };
  measure::RawDocument raw(folder.file("raw.json"), identity, false);
  const auto report = run(device, raw, small_plan(), options);
  CHECK(report.end == measure::RunEnd::interrupted);
  CHECK(report.measured == 4);
  CHECK(seen == 4);
}

TEST_CASE("the time left shrinks to nothing and follows the pace of the run") {
  const Folder folder;
  FakeDevice device(simple_law);
  std::vector<double> left;
  measure::RunOptions options;
  options.on_progress = [&](const measure::RunProgress& progress) {
    left.push_back(progress.seconds_left);
  };
  measure::RawDocument raw(folder.file("raw.json"), identity, false);
  run(device, raw, small_plan(), options);
  CHECK(left.front() > 1);
  CHECK(left.back() == Approx(0).margin(1e-9));
  // Half way the forecast is within a third of what it then takes.
  CHECK(left[left.size() / 2] == Approx(device.now_s() / 2).epsilon(0.34));
}

TEST_CASE("ranks measure collectives together, rank 0 the rest") {
  const Folder folder;
  constexpr int ranks = 3;
  measure::ThreadGroups groups(ranks);
  const auto plan = small_plan(ranks);
  std::vector<std::size_t> prepared(ranks);
  measure::RunReport report;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      FakeDevice device(simple_law);
      std::unique_ptr<measure::RawDocument> raw;
      if (rank == 0) {
        raw = std::make_unique<measure::RawDocument>(
            folder.file("raw.json"), measure::RunIdentity{"0.1.0", "NVIDIA H200", ranks}, false);
      }
      const auto mine = measure::run_plan(device, groups.member(rank), plan, raw.get(), {});
      prepared[static_cast<std::size_t>(rank)] = device.prepared;
      if (rank == 0) report = mine;
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto together = static_cast<std::size_t>(std::count_if(
      plan.points.begin(), plan.points.end(), [](const auto& p) { return p.spec.collective; }));
  CHECK(report.measured == plan.points.size());
  CHECK(prepared == std::vector<std::size_t>{plan.points.size(), together, together});
}

TEST_CASE("a rank whose plan has another point in its place refuses to exchange") {
  const Folder folder;
  constexpr int ranks = 2;
  const auto run_ranks = [&] {
    measure::run_in_threads(ranks, [&](measure::Group& group) {
      FakeDevice device(simple_law);
      std::unique_ptr<measure::RawDocument> raw;
      auto plan = small_plan(ranks);
      if (group.rank() == 0) {
        raw = std::make_unique<measure::RawDocument>(
            folder.file("raw.json"), measure::RunIdentity{"0.1.0", "NVIDIA H200", ranks}, false);
      } else {
        std::reverse(plan.points.begin(), plan.points.end());
      }
      measure::run_plan(device, group, plan, raw.get(), {});
    });
  };
  CHECK_THROWS_WITH(run_ranks(), ContainsSubstring("the plan of rank 1 does not have there"));
}

TEST_CASE("a plan is shuffled by its seed, by suite, and says what cannot be had") {
  measure::Selection all;
  const measure::Plan plan = measure::make_plan(all, 1, {});
  REQUIRE(plan.missing.size() == 1);
  CHECK(plan.missing[0].suite == "collectives");
  CHECK(plan.points.front().suite == "gemm");
  // What is compiled before it can be measured comes last.
  CHECK(plan.points.back().suite == "attention-backward");
  const measure::Plan other = measure::make_plan(all, 2, {});
  CHECK(other.points.front().spec.key() != plan.points.front().spec.key());
  std::set<std::string> keys;
  for (const auto& planned : plan.points) {
    keys.insert(planned.spec.key());
    CHECK(planned.seconds > 0);
  }
  CHECK(keys.size() == plan.points.size());

  measure::Selection few;
  few.only = {"gemm", "m=16"};
  for (const auto& planned : measure::make_plan(few, 1, {}).points) {
    CHECK(planned.spec.params.at("m") == 16);
  }
  few.only = {"m=17"};
  few.suites = {"gemm"};
  CHECK_THROWS_WITH(measure::make_plan(few, 1, {}), ContainsSubstring("--only 'm=17'"));
  few.suites = {"gem"};
  CHECK_THROWS_WITH(measure::make_plan(few, 1, {}), ContainsSubstring("did you mean 'gemm'?"));
}

TEST_CASE("an uneven exchange sends all bytes, in steps of 16, falling with the receiver's place") {
  for (const int gpus : {2, 3, 8, 72}) {
    CAPTURE(gpus);
    const std::int64_t bytes = 16 * gpus * 1000;
    const auto row = measure::uneven_row(gpus, 1, bytes);
    std::int64_t sum = 0;
    for (const std::int64_t each : row) {
      CHECK(each >= 16);
      CHECK(each % 16 == 0);
      sum += each;
    }
    CHECK(sum == bytes);
    CHECK(*std::max_element(row.begin(), row.end()) == row[2 % static_cast<std::size_t>(gpus)]);
  }
  CHECK(measure::uneven_row(3, 0, 48) == std::vector<std::int64_t>{16, 16, 16});
}

TEST_CASE("of a large reduction slices are checked, apart and from end to end") {
  constexpr std::size_t mega = 1 << 20;
  for (const std::size_t all : {std::size_t{8}, 32 * mega}) {
    const auto slices = measure::checked_slices(all);
    REQUIRE(slices.size() == 1);
    CHECK(slices[0].first == 0);
    CHECK(slices[0].count == all);
  }
  for (const std::size_t elements : {32 * mega + 8, 100 * mega + 24, 512 * mega}) {
    CAPTURE(elements);
    const auto slices = measure::checked_slices(elements);
    std::size_t end = 0, sum = 0;
    for (const measure::Slice& slice : slices) {
      CHECK(slice.first >= end);
      CHECK(slice.first - end <=
            elements / 63);  // nothing as long as a rank's part of 32 is missed
      end = slice.first + slice.count;
      sum += slice.count;
    }
    CHECK(slices.front().first == 0);
    CHECK(end == elements);
    CHECK(sum == 32 * mega);
  }
}
