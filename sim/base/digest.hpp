#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace moesim {

// FNV-1a, 64 bits: enough to notice that something changed, no protection against intent. Every
// piece is followed by its end, so that "ab", "c" and "a", "bc" differ.
class Digest {
 public:
  Digest& add(std::string_view text) {
    add_bytes(text.data(), text.size());
    return add_byte(0);
  }
  Digest& add(double value) {
    add_bytes(&value, sizeof value);
    return *this;
  }
  template <typename Value>
  Digest& add(std::span<const Value> values) {
    add_bytes(values.data(), values.size_bytes());
    const std::uint64_t count = values.size();
    add_bytes(&count, sizeof count);
    return *this;
  }
  std::uint64_t value() const { return value_; }

 private:
  void add_bytes(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (std::size_t at = 0; at < size; ++at) add_byte(bytes[at]);
  }
  Digest& add_byte(unsigned char byte) {
    value_ = (value_ ^ byte) * 0x100000001b3U;
    return *this;
  }

  std::uint64_t value_ = 0xcbf29ce484222325U;
};

// FNV-1a of 32 bits: for the streams of random numbers that a label names.
constexpr std::uint32_t fnv1a_32(std::string_view text) {
  std::uint32_t hash = 2166136261U;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  return hash;
}

}  // namespace moesim
