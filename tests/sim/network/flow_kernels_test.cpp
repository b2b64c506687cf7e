#include <algorithm>
#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "sim/network/flows/dense_kernels.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::network;

namespace {

constexpr std::size_t words = 2;
constexpr std::size_t width = 64 * words;

// Links in some state: most are nearly full with the flows that they hold back.
struct Links {
  std::vector<double> capacity, level, passed, since, end, rho, eta, least;
  std::vector<std::uint32_t> held_count, order;
  std::vector<std::uint64_t> alive, held;
  double correction = 0;

  explicit Links(std::mt19937_64& random) {
    std::uniform_real_distribution<double> real(0.5, 1.5);
    for (std::size_t link = 0; link < 2 * width; ++link) {
      capacity.push_back(60 * real(random));
      level.push_back(real(random));
      passed.push_back(real(random));
      since.push_back(real(random));
      end.push_back(10 * real(random));
      rho.push_back(1e-3 * (real(random) - 1));
      eta.push_back(1e-3 * (real(random) - 1));
      least.push_back(5 * real(random));
      order.push_back(static_cast<std::uint32_t>(link));
    }
    for (std::size_t link = 0; link < 2 * width; ++link) {
      const std::size_t across = link < width ? width : 0;
      std::uint32_t count = 0;
      for (std::size_t word = 0; word < words; ++word) {
        const std::uint64_t there = random() | random();
        std::uint64_t held_here = 0;
        for (std::size_t bit = 0; bit < 64; ++bit) {
          const bool above = level[across + 64 * word + bit] > level[link];
          if ((there >> bit & 1) != 0 && above && link % 8 != 7) held_here |= 1ULL << bit;
        }
        count += static_cast<std::uint32_t>(std::popcount(held_here));
        alive.push_back(there);
        held.push_back(held_here);
      }
      held_count.push_back(count);
      if (link % 16 == 7) rho[link] = -1;
    }
  }

  DenseLinks view() {
    return {capacity.data(), level.data(), passed.data(),     since.data(), end.data(),  rho.data(),
            eta.data(),      least.data(), held_count.data(), alive.data(), held.data(), words};
  }
  bool operator==(const Links&) const = default;
};

}  // namespace

TEST_CASE("links are fitted in the same bits on every instruction set") {
  std::mt19937_64 random(9);
  const DenseKernels& plain = dense_kernels(moesim::SimdLevel::baseline);
  int changed = 0, stopped = 0;
  for (const moesim::SimdLevel level : moesim::available_simd_levels()) {
    const DenseKernels& fast = dense_kernels(level);
    for (int round = 0; round < 30; ++round) {
      Links links(random);
      for (std::size_t link = 0; link < 2 * width; ++link) {
        std::vector<std::uint64_t> wanted(words), expected(words);
        CHECK(fast.wanted_level(links.view(), link, wanted.data()) ==
              plain.wanted_level(links.view(), link, expected.data()));
        CHECK(wanted == expected);
        changed += std::equal(wanted.begin(), wanted.end(),
                              links.held.begin() + static_cast<std::ptrdiff_t>(link * words))
                       ? 0
                       : 1;
      }
      const DenseClock clock{2, 1, 1.5, 1e-7, -1e-9};
      Links same = links;
      for (std::size_t at = 0; at < 2 * width; ++at) {
        const std::size_t stop =
            fast.fit(links.view(), links.order.data(), at, 2 * width, clock, links.correction);
        REQUIRE(stop ==
                plain.fit(same.view(), same.order.data(), at, 2 * width, clock, same.correction));
        stopped += stop < 2 * width ? 1 : 0;
        at = stop;
      }
      CHECK(links == same);
      CHECK(links.correction > 0);
    }
  }
  CHECK(changed > 0);
  CHECK(stopped > 0);
}

TEST_CASE("the dense solver's kernels give the same bits on every instruction set") {
  constexpr std::size_t links = 2 * width;
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> real(-1, 1);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::uint64_t> set(2 * words);
    std::vector<double> level(links), rho(links), eta(links);
    std::vector<std::uint32_t> held(links), due(links + 1), due_expected(links + 1);
    for (std::uint64_t& word : set) word = random() & random();
    for (std::size_t link = 0; link < links; ++link) {
      level[link] = real(random) + 1;
      rho[link] = real(random);
      eta[link] = real(random);
      held[link] = static_cast<std::uint32_t>(random() % 3);
    }
    const auto levels = moesim::available_simd_levels();
    const DenseKernels& fast =
        dense_kernels(levels[static_cast<std::size_t>(round) % levels.size()]);
    const DenseKernels& plain = dense_kernels(moesim::SimdLevel::baseline);
    CHECK(fast.least(level.data(), 2 * words).place == plain.least(level.data(), 2 * words).place);
    CHECK(fast.least(level.data(), 2 * words).value == plain.least(level.data(), 2 * words).value);
    std::vector<double> rho_expected = rho, eta_expected = eta;
    fast.push(set.data(), 0.1, 0.3, rho.data(), eta.data(), 2 * words);
    plain.push(set.data(), 0.1, 0.3, rho_expected.data(), eta_expected.data(), 2 * words);
    CHECK(rho == rho_expected);
    CHECK(eta == eta_expected);
    const auto list = [&](const DenseKernels& kernels, std::vector<std::uint32_t>& into) {
      const std::size_t count = kernels.exceeding(rho.data(), eta.data(), level.data(), held.data(),
                                                  0.7, 0.5, -0.5, 2 * words, into.data());
      into.resize(count);
    };
    list(fast, due);
    list(plain, due_expected);
    CHECK(due == due_expected);
    CHECK_FALSE(due.empty());
  }
}
