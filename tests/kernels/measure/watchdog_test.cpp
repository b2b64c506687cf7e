#include "kernels/measure/watchdog.hpp"

#include <atomic>
#include <chrono>

#include "kernels/measure/group.hpp"
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
  options.give_up = [&lines](const std::string& text) { lines.add(text); };
  Watchdog dog(options);
  for (int step = 0; step < 60; ++step) {  // a busy rank is no excuse
    dog.phase("gemm m=16: cold");
    std::this_thread::sleep_for(milliseconds(10));
  }
  const auto told = lines.all();
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0], ContainsSubstring("'gemm m=16: cold'"));
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
  std::this_thread::sleep_for(milliseconds(400));
  groups.member(2).barrier();
  first.join();
  second.join();
  const auto told = lines.all();
  REQUIRE(!told.empty());
  CHECK_THAT(told.back(), ContainsSubstring("waiting for rank 2"));
  CHECK(groups.member(0).awaited().empty());
}

TEST_CASE("a watchdog that is not needed ends at once") {
  const auto start = std::chrono::steady_clock::now();
  { Watchdog dog({}); }
  CHECK(std::chrono::steady_clock::now() - start < milliseconds(500));
}
