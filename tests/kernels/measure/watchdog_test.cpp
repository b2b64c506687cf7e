#include "kernels/measure/timing/watchdog.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "kernels/measure/ranks/group.hpp"
#include "kernels/measure/sessions/runner.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
using measure::Watchdog;
using std::chrono::milliseconds;

namespace {

// Lines from the watchdog's thread.
class Lines {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(text);
  }
  std::vector<std::string> all() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace

TEST_CASE("a phase that lasts is told, one that changes is not") {
  Lines lines;
  measure::WatchdogOptions options;
  options.who = "rank 3 of 8";
  options.silence_s = 0.2;
  options.tell = [&lines](const std::string& text) { lines.add(text); };
  Watchdog dog(options);
  for (int step = 0; step < 10; ++step) {
    dog.phase("busy " + std::to_string(step));
    std::this_thread::sleep_for(milliseconds(50));
  }
  CHECK(lines.all().empty());
  dog.phase("all-to-all: warm-up");
  std::this_thread::sleep_for(milliseconds(700));
  const auto told = lines.all();
  REQUIRE(!told.empty());
  CHECK(told.size() <= 4);
  CHECK_THAT(told[0],
             ContainsSubstring("rank 3 of 8: ") && ContainsSubstring("s in 'all-to-all: warm-up'"));
}

TEST_CASE("at the timeout it gives up once and says where") {
  Lines lines;
  measure::WatchdogOptions options;
  options.who = "rank 0 of 2";
  options.timeout_s = 0.3;
  options.give_up = [&lines](const std::string& text, moesim::ExitCode code) {
    CHECK(code == moesim::ExitCode::timeout);
    lines.add(text);
  };
  Watchdog dog(options);
  for (int step = 0; step < 60; ++step) {  // a busy rank is no excuse
    dog.phase("gemm m=16: cold");
    std::this_thread::sleep_for(milliseconds(10));
  }
  const auto told = lines.all();
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0], ContainsSubstring("out of time") && ContainsSubstring("'gemm m=16: cold'"));
}

TEST_CASE("a phase without an end is given up, one that waits for others is not") {
  Lines lines;
  measure::WatchdogOptions options;
  options.who = "rank 1 of 2";
  options.silence_s = 0.1;  // it looks four times as often
  options.stall_s = 0.2;
  options.give_up = [&lines](const std::string& text, moesim::ExitCode code) {
    CHECK(code == moesim::ExitCode::timeout);
    lines.add(text);
  };
  Watchdog dog(options);
  dog.phase(measure::waiting_phase, true);
  std::this_thread::sleep_for(milliseconds(500));
  CHECK(lines.all().empty());
  dog.phase("route tokens=1024: verify");
  std::this_thread::sleep_for(milliseconds(800));
  const auto told = lines.all();
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0], ContainsSubstring("no end of it in sight") &&
                          ContainsSubstring("'route tokens=1024: verify'"));
}

TEST_CASE("a rank that is lost ends the phase it left another in, and no other phase") {
  Lines lines;
  std::atomic<bool> gone{false};
  measure::WatchdogOptions options;
  options.who = "rank 0 of 3";
  options.silence_s = 0.1;
  options.lost_s = 1;
  options.lost = [&gone] { return std::string(gone ? "rank 2 is gone" : ""); };
  options.give_up = [&lines](const std::string& text, moesim::ExitCode code) {
    CHECK(code == moesim::ExitCode::failure);
    lines.add(text);
  };
  Watchdog dog(options);
  dog.phase("all-to-all: cold");
  std::this_thread::sleep_for(milliseconds(1300));
  CHECK(lines.all().empty());  // no rank is lost
  gone = true;
  for (int step = 0; step < 10; ++step) {  // it gets on: whoever is gone is not missed yet
    dog.phase("fit " + std::to_string(step));
    std::this_thread::sleep_for(milliseconds(150));
  }
  CHECK(lines.all().empty());
  dog.phase("all-to-all: cold");
  std::this_thread::sleep_for(milliseconds(2500));
  const auto told = lines.all();
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0],
             ContainsSubstring("rank 2 is gone") && ContainsSubstring("'all-to-all: cold'"));
}

TEST_CASE("it names the ranks that are waited for") {
  measure::ThreadGroups groups(3);
  Lines lines;
  measure::WatchdogOptions options;
  options.who = "rank 0 of 3";
  options.silence_s = 0.1;
  options.tell = [&lines](const std::string& text) { lines.add(text); };
  options.awaited = [&groups] { return groups.member(0).awaited(); };
  Watchdog dog(options);
  dog.phase("all-to-all: cold");
  std::thread first([&] { groups.member(0).barrier(); });
  std::thread second([&] { groups.member(1).barrier(); });
  // On a busy machine both threads take their time to arrive; then it is said once and again.
  const auto says_so = [&lines] {
    const auto told = lines.all();
    return std::any_of(told.begin(), told.end(), [](const std::string& line) {
      return line.find("waiting for rank 2") != std::string::npos;
    });
  };
  for (int wait = 0; wait < 300 && !says_so(); ++wait) {
    std::this_thread::sleep_for(milliseconds(100));
  }
  CHECK(says_so());
  groups.member(2).barrier();
  first.join();
  second.join();
  CHECK(groups.member(0).awaited().empty());
}

TEST_CASE("a watchdog that is not needed ends at once") {
  const auto start = std::chrono::steady_clock::now();
  { Watchdog dog({}); }
  CHECK(std::chrono::steady_clock::now() - start < milliseconds(1300));
}
