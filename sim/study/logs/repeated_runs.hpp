#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace moesim::study {

// One measured time of an exchange.
struct TimedRun {
  double time_us = 0;
  std::string file;
  std::size_t line = 0;  // 0: the file has none
};

// All times of one exchange by its size in bytes, at least one each.
using RunsBySize = std::map<double, std::vector<TimedRun>>;

// 5 % and 95 % quantiles of the runs at each size; both empty where no size was run twice.
struct RunQuantiles {
  std::vector<double> p05_us;
  std::vector<double> p95_us;
};

// The quantiles of 20 runs and more; of fewer runs the fastest and the slowest. A size that was run
// once takes the quantiles of the nearest one that was run more often, in proportion to its time.
RunQuantiles quantiles_of(const RunsBySize& runs);

// A warning where runs of one exchange lie further apart than repeats on one machine do: names the
// two that are furthest apart, with file and line. The caller goes on with what becomes of them.
std::optional<std::string> contradiction_of(const std::string& exchange, const RunsBySize& runs);

}  // namespace moesim::study
