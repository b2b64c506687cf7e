#include "sim/profile/size_curve.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::profile {

SizeCurve::SizeCurve(const Node& node)
    : bytes_(node.numbers("bytes")), time_us_(node.numbers("time_us")) {
  if (bytes_.size() < 2) node.fail("expected at least two knots", "bytes");
  if (time_us_.size() != bytes_.size()) {
    node.fail("expected as many times as there are sizes in bytes", "time_us");
  }
  if (!(bytes_.front() > 0)) node.fail("sizes must be positive", "bytes");
  if (!(time_us_.front() > 0)) node.fail("times must be positive", "time_us");
  for (std::size_t knot = 1; knot < bytes_.size(); ++knot) {
    if (!(bytes_[knot] > bytes_[knot - 1])) node.fail("sizes must ascend", "bytes");
    if (!(time_us_[knot] >= time_us_[knot - 1])) node.fail("times must not fall", "time_us");
  }
  if (!(time_us_.back() > time_us_[time_us_.size() - 2])) {
    node.fail("the last piece must rise: it carries the bandwidth of larger sizes", "time_us");
  }
}

SizeCurve::SizeCurve(std::vector<double> bytes, std::vector<double> time_us)
    : bytes_(std::move(bytes)), time_us_(std::move(time_us)) {
  const std::size_t count = bytes_.size();
  bool valid = count >= 2 && time_us_.size() == count && bytes_[0] > 0 && time_us_[0] > 0;
  for (std::size_t knot = 1; valid && knot < count; ++knot) {
    valid = bytes_[knot] > bytes_[knot - 1] && time_us_[knot] >= time_us_[knot - 1];
  }
  if (!valid || !(time_us_[count - 1] > time_us_[count - 2])) {
    throw Error(
        "a size curve takes at least two knots, sizes ascending, times positive and never falling, "
        "rising in the last piece: it carries the bandwidth of larger sizes");
  }
}

double SizeCurve::time_us(double bytes) const {
  if (bytes <= bytes_.front()) return time_us_.front();
  const auto above = std::lower_bound(bytes_.begin(), bytes_.end() - 1, bytes);
  const auto high = static_cast<std::size_t>(above - bytes_.begin());
  const double slope = (time_us_[high] - time_us_[high - 1]) / (bytes_[high] - bytes_[high - 1]);
  if (bytes > bytes_[high]) return time_us_[high] + (bytes - bytes_[high]) * slope;
  return time_us_[high - 1] + (bytes - bytes_[high - 1]) * slope;
}

double SizeCurve::over_chord(double bytes) const {
  return time_us(bytes) / std::sqrt(time_us(bytes / 2) * time_us(2 * bytes));
}

}  // namespace moesim::profile
