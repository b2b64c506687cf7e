#include <cstdint>
#include <random>
#include <vector>

#include "sim/network/flows/dense_kernels.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::network;

TEST_CASE("the dense solver's kernels give the same bits on every instruction set") {
  constexpr std::size_t words = 3;
  constexpr std::size_t links = 64 * words;
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> real(-1, 1);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::uint64_t> set(words), found(words), expected(words);
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
    fast.at_least(set.data(), level.data(), 1.2, found.data(), words);
    plain.at_least(set.data(), level.data(), 1.2, expected.data(), words);
    CHECK(found == expected);
    CHECK(fast.least(level.data(), words).place == plain.least(level.data(), words).place);
    CHECK(fast.least(level.data(), words).value == plain.least(level.data(), words).value);
    std::vector<double> rho_expected = rho, eta_expected = eta;
    fast.push(set.data(), 0.1, 0.3, rho.data(), eta.data(), words);
    plain.push(set.data(), 0.1, 0.3, rho_expected.data(), eta_expected.data(), words);
    CHECK(rho == rho_expected);
    CHECK(eta == eta_expected);
    const auto list = [&](const DenseKernels& kernels, std::vector<std::uint32_t>& into) {
      const std::size_t count = kernels.exceeding(rho.data(), eta.data(), level.data(), held.data(),
                                                  0.7, 0.5, -0.5, words, into.data());
      into.resize(count);
    };
    list(fast, due);
    list(plain, due_expected);
    CHECK(due == due_expected);
    CHECK_FALSE(due.empty());
  }
}
