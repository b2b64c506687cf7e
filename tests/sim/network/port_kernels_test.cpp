// The loops over ports: every instruction set must give the bits of the baseline.
#include <cstdint>
#include <random>
#include <vector>

#include "sim/network/exchange/port_clock_kernels.hpp"
#include "sim/network/ports/port_bound_kernels.hpp"
#include "tests/support/catch.hpp"

namespace moesim::network {
namespace {

constexpr int ranks = 37;  // no whole number of registers
constexpr auto width = static_cast<std::size_t>(ranks + padding);

// Some amounts are 0, as on the diagonal and where nobody sends.
std::vector<std::int64_t> amounts(std::mt19937_64& random, int bits) {
  std::vector<std::int64_t> row(static_cast<std::size_t>(ranks));
  for (std::int64_t& amount : row) {
    amount = random() % 4 == 0 ? 0 : static_cast<std::int64_t>(random() >> (64 - bits));
  }
  return row;
}

std::vector<double> reals(std::mt19937_64& random) {
  std::uniform_real_distribution<double> real(0.5, 2);
  std::vector<double> values(width);
  for (double& value : values) value = real(random);
  return values;
}

struct Bounded {
  std::vector<std::int64_t> bytes = std::vector<std::int64_t>(width), flows = bytes;
  std::vector<double> largest = std::vector<double>(width), upper = largest, lower = largest;
  std::vector<double> ends;
  bool operator==(const Bounded&) const = default;
};

Bounded bounded(const BoundKernels& kernels, std::uint64_t seed, bool any_amount) {
  std::mt19937_64 random(seed);
  // 37 amounts of 56 bits: above 2^52, and their sum is below 2^63.
  const std::vector<std::int64_t> row = amounts(random, any_amount ? 56 : 40);
  const std::int64_t* limit = row.data() + row.size();
  const auto latency = reals(random), share = reals(random), alone = reals(random);
  const auto mean = reals(random), left = reals(random), own = reals(random);
  Bounded found;
  const auto begin = static_cast<int>(random() % 5);
  const RowSum sum = (any_amount ? kernels.add_any_row : kernels.add_row)(
      row.data(), begin, ranks, limit,
      {found.bytes.data(), found.flows.data(), found.largest.data()});
  const Reach reach = (any_amount ? kernels.bound_any_row : kernels.bound_row)(
      row.data(), begin, ranks, limit, 3, {1.25, 0.75, 1e6, 0.5, 1e-9},
      {latency.data(), share.data(), alone.data(), mean.data(), left.data(), own.data(),
       found.upper.data(), found.lower.data()});
  found.ends = {static_cast<double>(sum.bytes),
                static_cast<double>(sum.flows),
                static_cast<double>(sum.bits),
                sum.largest,
                reach.upper,
                reach.lower};
  return found;
}

std::vector<double> clocked(const ClockKernels& kernels, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> bytes(width);
  std::vector<double> messages(width), earliest(width, 1e9), done(width), through(width);
  std::vector<double> end(width);
  const auto latency = reals(random), per_byte = reals(random);
  std::vector<double> sums;
  for (int sender = 0; sender < 6; ++sender) {
    const std::vector<std::int64_t> row = amounts(random, 30);
    const Columns columns{row.data(),      bytes.data(),    messages.data(), latency.data(),
                          per_byte.data(), earliest.data(), done.data(),     through.data(),
                          end.data(),      row.size()};
    const Sent sent =
        sender % 2 == 0 ? kernels.enter(columns, 10 - sender) : kernels.enter_uneven(columns, 4);
    sums.push_back(static_cast<double>(sent.bytes));
    sums.push_back(static_cast<double>(sent.messages));
    kernels.settle(columns, 1.5, 1e7, 0.125);
  }
  for (const auto* list : {&messages, &earliest, &done, &through, &end}) {
    sums.insert(sums.end(), list->begin(), list->end());
  }
  return sums;
}

}  // namespace

TEST_CASE("the port bound's loops give the same bits on every instruction set") {
  for (const SimdLevel level : available_simd_levels()) {
    INFO(name_of(level));
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      for (const bool any_amount : {false, true}) {
        const Bounded expected = bounded(bound_kernels(SimdLevel::baseline), seed, any_amount);
        CHECK(bounded(bound_kernels(level), seed, any_amount) == expected);
        CHECK(expected.ends[4] > 0);
      }
    }
  }
}

TEST_CASE("the port clock's loops give the same bits on every instruction set") {
  for (const SimdLevel level : available_simd_levels()) {
    INFO(name_of(level));
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      CHECK(clocked(clock_kernels(level), seed) ==
            clocked(clock_kernels(SimdLevel::baseline), seed));
    }
  }
}

}  // namespace moesim::network
