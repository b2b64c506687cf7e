#include "sim/routing/counts/draw_cache.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

namespace moesim::routing {
namespace {

template <class Narrow>
void pack(const std::vector<std::int32_t>& counts, std::uint8_t* packed) {
  for (const std::int32_t count : counts) {
    const auto narrow = static_cast<Narrow>(count);
    std::memcpy(packed, &narrow, sizeof narrow);
    packed += sizeof narrow;
  }
}

template <class Narrow>
void unpack(const std::uint8_t* packed, std::vector<std::int32_t>& counts) {
  for (std::int32_t& count : counts) {
    Narrow narrow = 0;
    std::memcpy(&narrow, packed, sizeof narrow);
    packed += sizeof narrow;
    count = static_cast<std::int32_t>(narrow);
  }
}

}  // namespace

PackedCounts::PackedCounts(const std::vector<std::int32_t>& counts) {
  std::int32_t most = 0;
  for (const std::int32_t count : counts) {
    assert(count >= 0);
    most = std::max(most, count);
  }
  width_ = most <= std::numeric_limits<std::uint8_t>::max()    ? 1
           : most <= std::numeric_limits<std::uint16_t>::max() ? 2
                                                               : 4;
  packed_.resize(counts.size() * width_);
  if (width_ == 1) {
    pack<std::uint8_t>(counts, packed_.data());
  } else if (width_ == 2) {
    pack<std::uint16_t>(counts, packed_.data());
  } else {
    pack<std::int32_t>(counts, packed_.data());
  }
}

std::vector<std::int32_t> PackedCounts::counts() const {
  std::vector<std::int32_t> counts(packed_.size() / width_);
  if (width_ == 1) {
    unpack<std::uint8_t>(packed_.data(), counts);
  } else if (width_ == 2) {
    unpack<std::uint16_t>(packed_.data(), counts);
  } else {
    unpack<std::int32_t>(packed_.data(), counts);
  }
  return counts;
}

}  // namespace moesim::routing
