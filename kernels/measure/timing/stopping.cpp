#include "kernels/measure/timing/stopping.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/measure/timing/samples.hpp"
#include "sim/base/random.hpp"
#include "sim/base/statistics.hpp"

namespace moesim::kernels::measure {

bool WarmUp::windows_agree() const {
  const auto window = static_cast<std::ptrdiff_t>(std::max<std::size_t>(2, times_.size() / 4));
  const double late = median({times_.end() - window, times_.end()});
  const double early = median({times_.end() - 2 * window, times_.end() - window});
  return std::abs(late - early) <= rule_.agreement * std::max(late, early);
}

bool WarmUp::add(double time_us, double elapsed_s) {
  times_.push_back(time_us);
  if (elapsed_s >= rule_.most_s) return true;
  if (times_.size() < rule_.fewest || elapsed_s < rule_.least_s) return false;
  if (times_.size() < next_check_) return false;
  // A check costs as much as the runs it looks at: the next one after a fifth as many again.
  next_check_ = times_.size() + std::max<std::size_t>(1, times_.size() / 5);
  settled_ = windows_agree();
  return settled_;
}

double Sampling::relative_half_width(std::size_t count) const {
  const auto end = samples_.begin() + static_cast<std::ptrdiff_t>(count);
  const auto interval = median_interval({samples_.begin(), end});
  if (!interval) return std::numeric_limits<double>::infinity();
  return (interval->high - interval->low) / 2 / median({samples_.begin(), end});
}

Stop Sampling::judge() {
  const double now = relative_half_width(samples_.size());
  if (now <= rule_.half_width) return Stop::precise;
  if (samples_.size() < rule_.plateau_from) return Stop::no;
  const double before = relative_half_width(samples_.size() / 2);
  return now > (1 - rule_.plateau_fall) * before ? Stop::plateau : Stop::no;
}

Stop Sampling::add(double time_us, double elapsed_s) {
  samples_.push_back(time_us);
  if (samples_.size() >= rule_.fewest) {
    if ((samples_.size() - rule_.fewest) % rule_.every == 0) {
      const Stop found = judge();
      if (found != Stop::no) return found;
    }
    if (samples_.size() >= rule_.most) return Stop::most_samples;
  }
  return elapsed_s >= rule_.most_s ? Stop::time : Stop::no;
}

std::vector<std::size_t> shuffled_order(std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  Stream stream({seed, Purpose::measurement});
  // Fisher and Yates, from the back.
  for (std::size_t left = count; left > 1; --left) {
    const auto chosen = static_cast<std::size_t>(stream.uniform() * static_cast<double>(left));
    std::swap(order[left - 1], order[std::min(chosen, left - 1)]);
  }
  return order;
}

}  // namespace moesim::kernels::measure
