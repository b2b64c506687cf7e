#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "sim/network/flows/refill_kernels.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::network;

namespace {

// Links of random capacities between which random pairs have flows, in an order that is not that of
// their levels. Links hold back their flows to later ones.
struct Links {
  std::size_t words, width;
  std::vector<double> capacity, reciprocal, level, highest, left;
  std::vector<std::uint64_t> alive;
  std::vector<std::uint32_t> held, order, where, firsts;
  std::size_t full = 0;

  Links(std::size_t wide, std::mt19937_64& random)
      : words(wide),
        width(64 * wide),
        reciprocal(width + 1, std::numeric_limits<double>::quiet_NaN()),
        level(2 * width),
        highest(2 * (width + 1)),
        left(2 * (width + 1) * width),
        alive(2 * width * words),
        held(2 * width),
        order(2 * width),
        where(2 * width),
        firsts(2 * width + 1) {
    std::uniform_real_distribution<double> real(0.5, 1.5);
    for (std::size_t count = 1; count <= width; ++count) {
      reciprocal[count] = 1 / static_cast<double>(count);
    }
    for (std::size_t link = 0; link < 2 * width; ++link) {
      capacity.push_back(60 * real(random));
      order[link] = static_cast<std::uint32_t>(link);
    }
    std::copy_n(capacity.begin(), width, left.begin());
    std::copy_n(capacity.data() + width, width, left.data() + (width + 1) * width);
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t first = 0; first < width; ++first) {
      for (std::size_t second = 0; second < width; ++second) {
        if (first == second || random() % 3 > 0) flip(first, second);
      }
    }
    for (std::size_t at = 0; at < 2 * width; ++at) {
      for (std::size_t later = at + 1; later < 2 * width; ++later) {
        if (meet(order[at], order[later])) ++held[order[at]];
      }
    }
    full = order.size();
  }

  void flip(std::size_t first, std::size_t second) {
    alive[first * words + second / 64] ^= 1ULL << (second % 64);
    alive[(width + second) * words + first / 64] ^= 1ULL << (first % 64);
  }
  bool meet(std::size_t link, std::size_t other) const {
    if ((link < width) == (other < width)) return false;
    return (alive[link * words + other % width / 64] >> (other % width % 64) & 1) != 0;
  }
  RefillKernels::Filled fill(const RefillKernels& kernels, std::size_t from) {
    RefillLinks links{words,         capacity.data(), reciprocal.data(), alive.data(), level.data(),
                      held.data(),   order.data(),    where.data(),      order.size(), full,
                      firsts.data(), highest.data(),  left.data()};
    const RefillKernels::Filled filled = kernels.fill(links, from);
    full = links.full;
    return filled;
  }
};

// Max-min: every link carries no more than it can, and every flow has a full link on which none is
// faster, which is the link of the lower level.
void check_levels(const Links& links) {
  for (std::size_t link = 0; link < 2 * links.width; ++link) {
    double sum = 0;
    bool holds = false;
    for (std::size_t other = 0; other < 2 * links.width; ++other) {
      if (!links.meet(link, other)) continue;
      sum += std::min(links.level[link], links.level[other]);
      holds = holds || links.level[link] < links.level[other];
    }
    CHECK(sum <= links.capacity[link] * (1 + 1e-11));
    if (holds) CHECK(sum >= links.capacity[link] * (1 - 1e-11));
  }
}

}  // namespace

TEST_CASE("links are filled to their max-min levels, in the same bits on every instruction set") {
  std::mt19937_64 random(3);
  for (const std::size_t words : {1, 2, 3}) {
    const Links unfilled(words, random);
    Links expected = unfilled;
    expected.fill(refill_kernels(moesim::SimdLevel::baseline), 0);
    check_levels(expected);
    CHECK(std::is_sorted(expected.firsts.begin(),
                         expected.firsts.begin() + static_cast<std::ptrdiff_t>(expected.full)));
    for (const moesim::SimdLevel level : moesim::available_simd_levels()) {
      const RefillKernels& kernels = refill_kernels(level);
      Links links = unfilled;
      const RefillKernels::Filled filled = links.fill(kernels, 0);
      CHECK(filled.levels > static_cast<std::int64_t>(links.full));
      CHECK(filled.moves > 0);
      CHECK(links.level == expected.level);
      CHECK(links.order == expected.order);
      CHECK(links.held == expected.held);
      // From anywhere in the order nothing changes.
      for (const std::size_t from : {links.full, links.full / 2, std::size_t{0}}) {
        const RefillKernels::Filled again = links.fill(kernels, from);
        CHECK(again.levels == static_cast<std::int64_t>(links.full - from));
        CHECK(links.level == expected.level);
        CHECK(links.order == expected.order);
      }
    }
  }
}

TEST_CASE("flows are served and found in the same bits on every instruction set") {
  constexpr std::size_t width = 64, records = 5, stride = RefillKernels::most_records;
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> real(0.5, 1.5);
  std::vector<double> level(2 * width), inverse(2 * width), bytes(width * width);
  for (std::size_t link = 0; link < 2 * width; ++link) inverse[link] = 1 / real(random);
  for (double& each : bytes) {
    each = random() % 4 > 0 ? 100 * real(random) : std::numeric_limits<double>::infinity();
  }
  std::vector<std::uint32_t> first, second;
  for (std::size_t flow = 0; flow < 24; ++flow) {
    first.push_back(static_cast<std::uint32_t>(random() % width));
    second.push_back(static_cast<std::uint32_t>(width + random() % width));
  }
  std::vector<std::vector<double>> levels(records, level);
  for (std::vector<double>& one : levels) {
    for (double& each : one) each = real(random);
  }
  std::vector<double> expected = bytes;
  for (std::size_t pair = 0; pair < bytes.size(); ++pair) {
    for (const std::vector<double>& one : levels) {
      expected[pair] -= std::min(one[pair / width] * 3.0, one[width + pair % width] * 3.0);
    }
  }
  for (const moesim::SimdLevel simd : moesim::available_simd_levels()) {
    const RefillKernels& kernels = refill_kernels(simd);
    std::vector<double> served = bytes, kept(2 * width * stride);
    for (std::size_t record = 0; record < records; ++record) {
      double grown = 0;
      for (std::size_t link = 0; link < 2 * width; ++link) {
        grown = std::max(grown, levels[record][link] * inverse[link]);
      }
      CHECK(kernels.record(levels[record].data(), inverse.data(), 3, 2 * width,
                           kept.data() + 8 * record) == grown);
    }
    std::vector<std::uint32_t> listed(bytes.size());
    const RefillKernels::Listed found = kernels.serve(served.data(), kept.data(), records,
                                                      inverse.data(), 60, width, listed.data());
    CHECK(served == expected);
    std::vector<std::uint32_t> wanted;
    double least = std::numeric_limits<double>::infinity();
    for (std::uint32_t pair = 0; pair < bytes.size(); ++pair) {
      const double time =
          expected[pair] * std::max(inverse[pair / width], inverse[width + pair % width]);
      least = std::min(least, time);
      if (time < 60) wanted.push_back(pair);
    }
    listed.resize(found.count);
    std::sort(listed.begin(), listed.end());
    CHECK(listed == wanted);
    CHECK_FALSE(wanted.empty());
    CHECK(found.least == least);

    std::vector<double> soon(24, 100), rate(24, 2), wait(24);
    soon[17] = 50;
    const SoonFlows flows{first.data(), second.data(), soon.data(), rate.data(), wait.data(), 20};
    const RefillKernels::Soonest next = kernels.soonest(flows, levels[0].data(), 10);
    CHECK(next.place == 17);
    CHECK(rate[17] == std::min(levels[0][first[17]], levels[0][second[17]]));
    CHECK(next.wait == (50 - 2.0 * 10) / rate[17]);
  }
}
