#include "tests/support/simt/executor.hpp"

#include <numeric>
#include <vector>

#include "kernels/base/bfloat16.cuh"
#include "kernels/base/device.cuh"
#include "kernels/base/philox.cuh"
#include "sim/base/random.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::kernels;
using simt::Fault;
using simt::launch;
using simt::Turns;

namespace {

std::string fault_of(const simt::LaunchShape& shape, const std::function<void()>& kernel) {
  try {
    launch(shape, kernel);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return {};
}

}  // namespace

TEST_CASE("threads of a block exchange values through shared memory and a barrier") {
  for (const Turns turns : {Turns::forward, Turns::backward, Turns::shuffled}) {
    std::vector<int> out(3 * 96, -1);
    launch(
        {3, 96, 96 * sizeof(int)},
        [&] {
          int* shared = reinterpret_cast<int*>(shared_memory());
          const int thread = thread_index();
          shared[thread] = thread * 10 + block_index();
          sync_block();
          out[block_index() * std::size_t{96} + thread] = shared[95 - thread];
        },
        turns);
    for (int block = 0; block < 3; ++block) {
      for (int thread = 0; thread < 96; ++thread) {
        REQUIRE(out[static_cast<std::size_t>(block * 96 + thread)] == (95 - thread) * 10 + block);
      }
    }
  }
}

TEST_CASE("a part of a block waits for its own threads alone") {
  for (const Turns turns : {Turns::forward, Turns::backward, Turns::shuffled}) {
    std::vector<int> out(128, -1);
    launch(
        {1, 128, 128 * sizeof(int)},
        [&] {
          int* shared = reinterpret_cast<int*>(shared_memory());
          const int thread = thread_index(), part = thread / 64;
          // One part has more rounds than the other.
          for (int round = 0; round <= 2 * part; ++round) {
            shared[thread] = thread + 1000 * round;
            sync_part(part, 64);
            out[static_cast<std::size_t>(thread)] = shared[part * 64 + 63 - thread % 64];
            sync_part(part, 64);
          }
          sync_block();
        },
        turns);
    for (int thread = 0; thread < 128; ++thread) {
      const int part = thread / 64;
      REQUIRE(out[static_cast<std::size_t>(thread)] == part * 64 + 63 - thread % 64 + 2000 * part);
    }
  }
}

TEST_CASE("warp operations see all lanes of their warp, in a row") {
  std::vector<std::uint32_t> sums(64), odd(64), best(64), up(64), mirrored(64);
  launch({1, 64}, [&] {
    const auto at = static_cast<std::size_t>(thread_index());
    const auto value = static_cast<std::uint32_t>(thread_index());
    sums[at] = warp_sum(value);
    odd[at] = ballot(value % 2 == 1);
    best[at] = warp_max(value) * 100 + warp_min(value);
    up[at] = shuffle_up(value, 3);
    mirrored[at] = shuffle_xor(value, 31);
  });
  for (std::size_t at = 0; at < 64; ++at) {
    const std::uint32_t first = at < 32 ? 0 : 32;
    CHECK(sums[at] == 32 * first + 31 * 32 / 2);
    CHECK(odd[at] == 0xAAAAAAAAU);
    CHECK(best[at] == (first + 31) * 100 + first);
    CHECK(up[at] == (at % 32 < 3 ? at : at - 3));
    CHECK(mirrored[at] == first + 31 - at % 32);
  }
}

TEST_CASE("a race shows as a result that depends on whose turn it is") {
  const auto last_writer = [](Turns turns) {
    int winner = -1;
    launch(
        {1, 64}, [&] { winner = thread_index(); }, turns);
    return winner;
  };
  CHECK(last_writer(Turns::forward) != last_writer(Turns::backward));
}

TEST_CASE("a barrier that some threads never reach is a fault") {
  const std::string left = fault_of({1, 64}, [] {
    if (thread_index() != 5) sync_block();
  });
  CHECK_THAT(left, ContainsSubstring("thread 0 waits for ever in the barrier"));
  CHECK_THAT(left, ContainsSubstring("1 threads have returned"));
  const std::string apart = fault_of({2, 64}, [] {
    if (thread_index() < 32) {  // NOLINT(bugprone-branch-clone): two barriers
      sync_block();
    } else {
      sync_block();
    }
  });
  CHECK_THAT(apart, ContainsSubstring("while others wait at that of line"));
}

TEST_CASE("a barrier of another part, or one that some of a part never reach, is a fault") {
  CHECK_THAT(fault_of({1, 64}, [] { sync_part(0, 32); }), ContainsSubstring("not its own"));
  CHECK_THAT(fault_of({1, 64}, [] { sync_part(thread_index() / 48, 48); }),
             ContainsSubstring("not its own"));
  CHECK_THAT(fault_of({1, 128},
                      [] {
                        if (thread_index() != 70) sync_part(thread_index() / 64, 64);
                      }),
             ContainsSubstring("block 0, thread 64 waits for ever in the barrier"));
}

TEST_CASE("lanes that part before a warp operation are a fault") {
  CHECK_THAT(fault_of({1, 32},
                      [] {
                        if (thread_index() == 31) return;
                        warp_sum(1);
                      }),
             ContainsSubstring("the warp operation"));
  // Not inside a macro, where all lines are one.
  const std::string apart = fault_of({1, 32}, [] {
    if (thread_index() < 16) {
      ballot(true);
    } else {
      ballot(false);
    }
  });
  CHECK_THAT(apart, ContainsSubstring("while its warp is in that of line"));
}

TEST_CASE("a write past the shared memory is a fault, and it starts poisoned") {
  CHECK_THAT(fault_of({1, 32, 64}, [] { shared_memory()[64] = 1; }),
             ContainsSubstring("past its 64 bytes"));
  unsigned char first = 0;
  launch({1, 32, 64}, [&] { first = shared_memory()[7]; });
  CHECK(first == 0xA5);
}

TEST_CASE("asynchronous copies arrive with the wait for their group, not before") {
  const Vector16 source[2] = {{{1, 2, 3, 4}}, {{5, 6, 7, 8}}};
  std::uint32_t before = 0, first = 0, second_early = 0, second = 0, zero = 1;
  launch({1, 32, 64}, [&] {
    if (thread_index() != 0) return;
    auto* to = reinterpret_cast<Vector16*>(shared_memory());
    copy_async_16(&to[0], &source[0], true);
    commit_copies();
    copy_async_16(&to[1], &source[1], true);
    copy_async_16(&to[2], &source[1], false);
    commit_copies();
    before = to[0].word[0];
    wait_for_copies<1>();
    first = to[0].word[0];
    second_early = to[1].word[0];
    wait_for_copies<0>();
    second = to[1].word[3];
    zero = to[2].word[0];
  });
  CHECK(before == 0xA5A5A5A5U);
  CHECK(first == 1);
  CHECK(second_early == 0xA5A5A5A5U);
  CHECK(second == 8);
  CHECK(zero == 0);
  CHECK_THAT(fault_of({1, 32, 64},
                      [&] {
                        copy_async_16(shared_memory(), &source[0], true);
                        commit_copies();
                      }),
             ContainsSubstring("before its asynchronous copies"));
}

TEST_CASE("matrix fragments multiply as the matrices do") {
  // a [16, 16], b [8 columns, 16] of small whole numbers: every sum is exact.
  std::vector<Bfloat16> a(16 * 16), b(8 * 16);
  for (std::size_t at = 0; at < a.size(); ++at) a[at] = to_bfloat16(static_cast<float>(at % 7) - 3);
  for (std::size_t at = 0; at < b.size(); ++at) b[at] = to_bfloat16(static_cast<float>(at % 5) - 2);
  std::vector<float> d(16 * 8, 0.0F);
  launch({1, 32, 16 * 16 * 2 + 8 * 16 * 2}, [&] {
    auto* left = reinterpret_cast<Bfloat16*>(shared_memory());
    Bfloat16* right = left + 16 * 16;
    const int lane = lane_index();
    for (int at = lane; at < 256; at += 32) left[at] = a[static_cast<std::size_t>(at)];
    for (int at = lane; at < 128; at += 32) right[at] = b[static_cast<std::size_t>(at)];
    sync_block();
    std::uint32_t fragment[4], columns[4];
    load_matrices(fragment, left + (lane % 16) * 16 + lane / 16 * 8);
    load_matrices(columns, right + (lane % 8) * 16 + lane / 8 % 2 * 8);
    const std::uint32_t half[2] = {columns[0], columns[1]};
    float sum[4] = {1, 1, 1, 1};
    multiply_matrices(sum, fragment, half);
    for (int part = 0; part < 4; ++part) {
      const int row = lane / 4 + part / 2 * 8;
      d[row * std::size_t{8} + lane % 4 * 2 + part % 2] = sum[part];
    }
  });
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      float expected = 1;
      for (std::size_t k = 0; k < 16; ++k) {
        expected += to_float(a[row * 16 + k]) * to_float(b[column * 16 + k]);
      }
      REQUIRE(d[row * 8 + column] == expected);
    }
  }
}

TEST_CASE("bf16 rounds to nearest, ties to even") {
  CHECK(to_float(to_bfloat16(1.0F)) == 1.0F);
  CHECK(to_float(to_bfloat16(1.0F + 0x1p-8F)) == 1.0F);                // a tie: to even
  CHECK(to_float(to_bfloat16(1.0F + 3 * 0x1p-8F)) == 1.0F + 0x1p-6F);  // a tie: to even, upwards
  CHECK(to_float(to_bfloat16(1.0F + 0x1.02p-8F)) == 1.0F + 0x1p-7F);
  CHECK(to_float(to_bfloat16(-0x1.fffffep127F)) == -__builtin_huge_valf());
  CHECK(std::isnan(to_float(to_bfloat16(std::nanf("")))));
}

TEST_CASE("the device's Philox is the simulator's") {
  for (const std::uint64_t index : {0ULL, 1ULL, 77ULL, 1ULL << 35}) {
    const moesim::StreamKey key{0x123456789abcULL, moesim::Purpose::drop_priority, 5, 6, 7};
    const moesim::PhiloxWords words = moesim::philox_words(key);
    PhiloxKey stream;
    for (std::size_t at = 0; at < 2; ++at) {
      stream.key[at] = words.key[at];
      stream.counter[at] = words.counter[at + 2];
    }
    const PhiloxWords4 block = philox(stream, index);
    const moesim::PhiloxBlock expected = moesim::philox_block(key, index);
    for (std::size_t at = 0; at < 4; ++at) CHECK(block.word[at] == expected[at]);
  }
}

TEST_CASE("ordered bits order as floats do") {
  const float values[] = {-__builtin_huge_valf(), -2.5F, -1e-40F, -0.0F, 1e-40F, 3.0F,
                          __builtin_huge_valf()};
  for (std::size_t at = 1; at < std::size(values); ++at) {
    CHECK(ordered_of(values[at - 1]) < ordered_of(values[at]));
    CHECK(unordered(ordered_of(values[at])) == values[at]);
  }
  CHECK(ordered_of(-0.0F) == ordered_of(0.0F));
  CHECK(ordered_of(-__builtin_huge_valf()) > 0);
}
