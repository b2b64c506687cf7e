#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moesim {

// What every rank of an exchange sends to every other, in bytes. The diagonal is a copy on the
// rank itself: it is kept, and no link carries it.
class ByteMatrix {
 public:
  ByteMatrix() = default;
  explicit ByteMatrix(int ranks)
      : ranks_(ranks), bytes_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) {}

  int ranks() const { return ranks_; }
  std::int64_t& at(int source, int destination) { return bytes_[cell(source, destination)]; }
  std::int64_t at(int source, int destination) const { return bytes_[cell(source, destination)]; }
  // The bytes of one source, by destination: ranks() of them.
  const std::int64_t* row(int source) const { return bytes_.data() + cell(source, 0); }
  std::int64_t* row(int source) { return bytes_.data() + cell(source, 0); }

  bool operator==(const ByteMatrix&) const = default;

 private:
  std::size_t cell(int source, int destination) const {
    assert(source >= 0 && source < ranks_ && destination >= 0 && destination < ranks_);
    return static_cast<std::size_t>(source) * static_cast<std::size_t>(ranks_) +
           static_cast<std::size_t>(destination);
  }

  int ranks_ = 0;
  std::vector<std::int64_t> bytes_;
};

}  // namespace moesim
