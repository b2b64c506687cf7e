#pragma once

#include <cstddef>
#include <vector>

namespace moesim::network {

// An array of doubles that begins a cache line, as many as fill lines: a register of 64 bytes then
// lies in one line.
class AlignedDoubles {
 public:
  static constexpr std::size_t per_line = 8;

  void assign(std::size_t count, double value) {
    lines_.resize((count + per_line - 1) / per_line);
    for (Line& line : lines_) {
      for (double& each : line.values) each = value;
    }
  }
  double* data() { return lines_.empty() ? nullptr : lines_.data()->values; }
  double& operator[](std::size_t index) { return lines_.data()->values[index]; }
  double operator[](std::size_t index) const { return lines_.data()->values[index]; }

 private:
  struct alignas(per_line * sizeof(double)) Line {
    double values[per_line];
  };
  std::vector<Line> lines_;
};

}  // namespace moesim::network
