#include "kernels/base/per_kernel.hpp"

#include <stdexcept>
#include <vector>

#include "tests/support/catch.hpp"

using moesim::kernels::PerKernel;

TEST_CASE("what is asked of a kernel is asked once per device") {
  PerKernel<int> blocks;
  const int kernels[2] = {};
  std::vector<int> asked;
  const auto ask = [&](int kernel, int device) {
    return blocks.get(&kernels[kernel], device, [&] {
      asked.push_back(10 * kernel + device);
      return 100 + asked.back();
    });
  };
  for (int turn = 0; turn < 3; ++turn) {
    CHECK(ask(0, 0) == 100);
    CHECK(ask(0, 1) == 101);
    CHECK(ask(1, 0) == 110);
  }
  CHECK(asked == std::vector<int>{0, 1, 10});
}

TEST_CASE("a limit is set when it grows, and one that was refused is set again") {
  PerKernel<int> limits;
  const int kernel = 0;
  std::vector<int> set;
  const auto raise = [&](int value) {
    limits.raise(&kernel, 0, value, [&](int most) { set.push_back(most); });
  };
  raise(10);
  raise(10);
  raise(5);
  raise(20);
  CHECK(set == std::vector<int>{10, 20});
  CHECK_THROWS(limits.raise(&kernel, 0, 30, [](int) { throw std::runtime_error("refused"); }));
  raise(30);
  CHECK(set == std::vector<int>{10, 20, 30});
}
