#pragma once

#include <optional>
#include <vector>

#include "sim/uncertainty/published/step_errors.hpp"

namespace moesim::study {

// What a GPU hour of a machine may cost for its tokens to cost no more than those of another. With
// p the price there and r the ratio of tokens per second and GPU, a token costs price / r over p.
struct BreakEven {
  struct Range {
    double level = 0;
    double low = 0;
    double high = 0;
  };
  double price = 0;           // p r, in the currency of p; the ratio of prices where p is 1
  std::vector<Range> ranges;  // as r is off, the widest first
};

// `speed`: r as predicted. `levels`: of log(measured / predicted r), the widest first; may be
// empty.
BreakEven break_even(double price, double speed, const std::vector<uncertainty::BandLevel>& levels);

// What a token costs on a machine over what it costs on another.
struct TokenCost {
  double ratio = 1;
  // The least chance that the one that is predicted to be cheaper is: (1 + L) / 2 of the widest
  // level L at which all of the band lies on that side of 1; nothing: 1 lies inside every level.
  std::optional<double> chance;
};

// `prices`: of a GPU hour over that of the other. `speed` and `levels` as above.
TokenCost token_cost(double prices, double speed,
                     const std::vector<uncertainty::BandLevel>& levels);

}  // namespace moesim::study
