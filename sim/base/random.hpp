#pragma once

#include <array>
#include <cstdint>

namespace moesim {

// What a random stream is for: streams of different purpose never share a counter.
enum class Purpose : std::uint32_t {
  logits = 1,
  expert_bias = 2,
  drop_priority = 3,
  curve_residual = 4,
  bootstrap = 5,
  test_data = 6,
  measurement = 7,
  jitter = 8,
  random_expert = 9,  // of a router that draws
  token_id = 10,
  skipped_exchange = 11,
  second_expert = 12,
  counts = 16,
  ir_targets = 17,
  score_model = 20,
  token_kind = 21,
  load_distribution = 22,
};

// The address of a random stream. Streams are counter-based (Philox 4x32-10, Salmon et al. 2011):
// a value is a pure function of (seed, purpose, replica, layer, rank, index), so results do not
// depend on threads, on order, or on what else was drawn.
struct StreamKey {
  std::uint64_t seed = 1;
  Purpose purpose = Purpose::logits;
  std::uint32_t replica = 0;  // < 2^24
  std::uint32_t layer = 0;    // < 2^16
  std::uint32_t rank = 0;     // < 2^24
};

using PhiloxBlock = std::array<std::uint32_t, 4>;

// The `index`-th block of four 32-bit words of a stream; for logits, index counts (token, expert
// pair) as the caller lays them out.
PhiloxBlock philox_block(const StreamKey& key, std::uint64_t index);

// The Philox key and counter words of a stream, for callers that vectorise the rounds themselves.
// counter = {low(index), high(index), rank | purpose << 24, layer | replica << 16 (low 16 bits)},
// key = {low(seed), high(seed) ^ (replica >> 16)}.
struct PhiloxWords {
  std::array<std::uint32_t, 2> key;
  std::array<std::uint32_t, 4> counter;  // at index 0
};
PhiloxWords philox_words(const StreamKey& key);

// A cursor over one stream, for code that draws a few values one after another.
class Stream {
 public:
  explicit Stream(const StreamKey& key) : key_(key) {}
  std::uint32_t next_u32();
  double uniform();            // in (0, 1), 52 bits, never 0 or 1
  double normal();             // standard normal, Box-Muller
  double gumbel();             // standard Gumbel: -log(-log(u))
  double gamma(double shape);  // Gamma(shape, 1), shape > 0, Marsaglia-Tsang 2000

 private:
  StreamKey key_;
  std::uint64_t index_ = 0;
  PhiloxBlock block_{};
  int used_ = 4;
};

}  // namespace moesim
