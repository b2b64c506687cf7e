#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/base/enum_names.hpp"

namespace moesim::kernels::measure {

// Warm-up: at least `fewest` runs and `least_s` seconds, until the medians of two adjoining windows
// of runs agree within `agreement`; given up after `most_s`. The windows grow with the number of
// runs, so that noise of single runs does not keep a stable kernel from passing.
struct WarmUpRule {
  std::size_t fewest = 5;
  double least_s = 0.1;
  double most_s = 3;
  double agreement = 0.01;
};
class WarmUp {
 public:
  explicit WarmUp(const WarmUpRule& rule = {}) : rule_(rule) {}
  // One run of `time_us`, `elapsed_s` after the first one began. True once it is warm or given up.
  bool add(double time_us, double elapsed_s);
  bool settled() const { return settled_; }  // the windows agreed
  std::size_t runs() const { return times_.size(); }

 private:
  bool windows_agree() const;

  WarmUpRule rule_;
  std::vector<double> times_;
  std::size_t next_check_ = 0;
  bool settled_ = false;
};

// Why sampling ended.
enum class Stop {
  no,            // it goes on
  precise,       // the interval of the median is narrow enough
  plateau,       // more samples no longer narrow it
  most_samples,  // the limit of samples
  time           // the limit of time
};
inline constexpr EnumNames<Stop, 5> stop_names{{{Stop::no, "none"},
                                                {Stop::precise, "precise"},
                                                {Stop::plateau, "plateau"},
                                                {Stop::most_samples, "most-samples"},
                                                {Stop::time, "time"}}};

// When enough samples are there. Judged every `every` samples from `fewest` on.
struct StoppingRule {
  std::size_t fewest = 30;
  std::size_t most = 10'000;
  std::size_t every = 16;
  double most_s = 15;
  // Half the width of the 95 % interval of the median, over the median.
  double half_width = 0.005;
  // A plateau: from `plateau_from` samples on, the half-width fell by less than `plateau_fall`
  // since half as many samples; independent samples would let it fall by 29 % (1 - 1 / sqrt 2).
  std::size_t plateau_from = 256;
  double plateau_fall = 0.10;

  static StoppingRule for_kernels() { return {}; }
  static StoppingRule for_collectives() {
    StoppingRule rule;
    rule.half_width = 0.02;
    return rule;
  }
};
class Sampling {
 public:
  explicit Sampling(const StoppingRule& rule) : rule_(rule) {}
  // One more sample, `elapsed_s` after the first one began.
  Stop add(double time_us, double elapsed_s);
  const std::vector<double>& samples() const { return samples_; }

 private:
  Stop judge();
  double relative_half_width(std::size_t count) const;

  StoppingRule rule_;
  std::vector<double> samples_;
};

// The indices 0..count-1 in the order in which a sweep visits them: shuffled by `seed`, so that a
// drift of the machine does not look like an effect of size. Same seed, same order.
std::vector<std::size_t> shuffled_order(std::size_t count, std::uint64_t seed);

}  // namespace moesim::kernels::measure
