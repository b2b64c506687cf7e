#include "sim/base/random.hpp"

#include <cmath>
#include <set>
#include <vector>

#include "tests/support/catch.hpp"

using namespace moesim;

namespace {

StreamKey key(std::uint64_t seed, std::uint32_t purpose, std::uint32_t replica, std::uint32_t layer,
              std::uint32_t rank) {
  return {seed, static_cast<Purpose>(purpose), replica, layer, rank};
}

}  // namespace

TEST_CASE("streams give Random123's known answers") {
  // philox4x32, 10 rounds, from its kat_vectors: counter and key all zero, all one, digits of pi.
  CHECK(philox_block(key(0, 0, 0, 0, 0), 0) ==
        PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox_block(key(~0ULL, 0xff, 0xffff, 0xffff, 0xffffff), ~0ULL) ==
        PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  // Counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0.
  CHECK(philox_block(key(0x299f31d0a4093822, 0x13, 0x0370, 0x7344, 0x198a2e), 0x85a308d3243f6a88) ==
        PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("every part of a key opens a stream of its own") {
  std::set<PhiloxBlock> seen;
  const std::vector<StreamKey> keys = {key(1, 1, 0, 0, 0),          key(2, 1, 0, 0, 0),
                                       key(1ULL << 40, 1, 0, 0, 0), key(1, 2, 0, 0, 0),
                                       key(1, 1, 1, 0, 0),          key(1, 1, 1 << 16, 0, 0),
                                       key(1, 1, 0, 1, 0),          key(1, 1, 0, 0, 1)};
  for (const StreamKey& each : keys) {
    seen.insert(philox_block(each, 0));
    seen.insert(philox_block(each, 1));
  }
  CHECK(seen.size() == 2 * keys.size());
}

TEST_CASE("a cursor reads its stream in order") {
  const StreamKey one = key(7, 4, 3, 2, 1);
  Stream stream(one);
  for (std::uint64_t index = 0; index < 3; ++index) {
    for (const std::uint32_t word : philox_block(one, index)) CHECK(stream.next_u32() == word);
  }
}

TEST_CASE("draws have the moments of their distributions") {
  // 200,000 draws each; the bounds are five standard errors of the mean (and of the variance for
  // the normal: sqrt(2 / n)).
  constexpr int draws = 200'000;
  Stream stream(key(11, 6, 0, 0, 0));
  double uniform = 0;
  double normal = 0;
  double square = 0;
  double gumbel = 0;
  double small = 0;
  double large = 0;
  for (int draw = 0; draw < draws; ++draw) {
    const double u = stream.uniform();
    REQUIRE((u > 0 && u < 1));
    uniform += u;
    const double x = stream.normal();
    normal += x;
    square += x * x;
    gumbel += stream.gumbel();
    small += stream.gamma(0.3);
    large += stream.gamma(4);
  }
  const double root = std::sqrt(static_cast<double>(draws));
  CHECK(std::abs(uniform / draws - 0.5) < 5 * std::sqrt(1.0 / 12) / root);
  CHECK(std::abs(normal / draws) < 5 / root);
  CHECK(std::abs(square / draws - 1) < 5 * std::sqrt(2.0) / root);
  CHECK(std::abs(gumbel / draws - 0.5772156649) < 5 * (M_PI / std::sqrt(6.0)) / root);
  CHECK(std::abs(small / draws - 0.3) < 5 * std::sqrt(0.3) / root);
  CHECK(std::abs(large / draws - 4) < 5 * 2 / root);
}
