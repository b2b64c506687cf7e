#include "kernels/measure/ranks/group.hpp"

#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;

TEST_CASE("ranks queue an exchange only when all have settled, and go on when all have queued") {
  constexpr int ranks = 4;
  std::mutex mutex;
  std::vector<std::string> said;
  measure::run_in_threads(ranks, [&](measure::Group& group) {
    // Each step is late on another rank.
    const auto step = [&](const char* what, int late) {
      if (group.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const std::lock_guard lock(mutex);
      said.emplace_back(what);
    };
    measure::queue_together(
        group, [&] { step("settled", 1); }, [&] { step("queued", 2); });
    step("goes on", 3);
  });
  std::vector<std::string> expected;
  for (const char* what : {"settled", "queued", "goes on"}) {
    expected.insert(expected.end(), ranks, what);
  }
  CHECK(said == expected);
}

TEST_CASE("a rank whose device fails before an exchange keeps the others from queueing theirs") {
  bool queued = false;
  CHECK_THROWS_WITH(measure::run_in_threads(2,
                                            [&](measure::Group& group) {
                                              measure::queue_together(
                                                  group,
                                                  [&] {
                                                    if (group.rank() == 0) return;
                                                    throw std::runtime_error("the device is lost");
                                                  },
                                                  [&] { queued = true; });
                                            }),
                    "the device is lost");
  CHECK_FALSE(queued);
}
