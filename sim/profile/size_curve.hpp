#pragma once

#include <vector>

#include "sim/base/formats/document.hpp"

namespace moesim::profile {

// Time against bytes as straight pieces, each a regime (a protocol, a number of channels, cache or
// memory) with its own latency and bandwidth: t = alpha + bytes / beta per piece.
class SizeCurve {
 public:
  // Reads {"bytes": [...], "time_us": [...]}: at least two knots, bytes ascending, times positive,
  // never falling, rising in the last piece.
  explicit SizeCurve(const Node& node);
  // The same from knots at hand; throws Error for knots that break these rules.
  SizeCurve(std::vector<double> bytes, std::vector<double> time_us);

  // Microseconds. Below the first knot its time (the latency floor); beyond the last, the bandwidth
  // of the last piece.
  double time_us(double bytes) const;
  // How far the curve lies above (> 1) or below (< 1) the straight line in log-log from half of
  // `bytes` to twice them: where it does, a protocol or the number of channels changes, at another
  // size under another NCCL version.
  double over_chord(double bytes) const;
  double smallest() const { return bytes_.front(); }
  double largest() const { return bytes_.back(); }

 private:
  std::vector<double> bytes_;
  std::vector<double> time_us_;
};

}  // namespace moesim::profile
