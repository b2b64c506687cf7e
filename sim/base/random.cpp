#include "sim/base/random.hpp"

#include <Random123/philox.h>

#include <cmath>

namespace moesim {

PhiloxWords philox_words(const StreamKey& key) {
  const auto purpose = static_cast<std::uint32_t>(key.purpose);
  return {{static_cast<std::uint32_t>(key.seed),
           static_cast<std::uint32_t>(key.seed >> 32) ^ (key.replica >> 16)},
          {0, 0, key.rank | purpose << 24, key.layer | key.replica << 16}};
}

PhiloxBlock philox_block(const StreamKey& key, std::uint64_t index) {
  const PhiloxWords words = philox_words(key);
  const r123::Philox4x32::ctr_type counter = {{static_cast<std::uint32_t>(index),
                                               static_cast<std::uint32_t>(index >> 32),
                                               words.counter[2], words.counter[3]}};
  const r123::Philox4x32::key_type seed = {{words.key[0], words.key[1]}};
  const r123::Philox4x32::ctr_type out = r123::Philox4x32()(counter, seed);
  return {out[0], out[1], out[2], out[3]};
}

std::uint32_t Stream::next_u32() {
  if (used_ == 4) {
    block_ = philox_block(key_, index_++);
    used_ = 0;
  }
  return block_[static_cast<std::size_t>(used_++)];
}

double Stream::uniform() {
  const std::uint64_t high = next_u32();
  const std::uint64_t bits = (high << 32 | next_u32()) >> 12;  // 52 bits, centred in their cell
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

double Stream::normal() {
  const double radius = std::sqrt(-2.0 * std::log(uniform()));
  return radius * std::cos(2.0 * M_PI * uniform());
}

double Stream::gumbel() { return -std::log(-std::log(uniform())); }

double Stream::gamma(double shape) {
  if (shape < 1) return gamma(shape + 1) * std::pow(uniform(), 1.0 / shape);
  const double d = shape - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double x = normal();
    const double v = std::pow(1.0 + c * x, 3);
    if (v > 0 && std::log(uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace moesim
