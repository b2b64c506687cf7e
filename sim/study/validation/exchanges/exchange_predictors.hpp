#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/study/validation/exchanges/exchange_errors.hpp"

namespace moesim::study {

// One run of an exchange: the curve of each GPU count.
using Run = std::map<int, profile::SizeCurve>;

// The curve through `samples` with a tail up to `largest` bytes, as published curves have it: each
// further byte costs what it did over the last octave, less 2 % per octave, four octaves long.
// Twin of tools/fit/exchange_tail.py.
profile::SizeCurve with_tail(const profile::SizeCurve& curve, double largest);

// The curve among `gpus` from a sibling machine's runs, scaled by half the ratio of the two at the
// smaller counts that all have, smoothed over sizes. At least one donor has `gpus`. Twin of
// tools/fit/exchange_siblings.py.
profile::SizeCurve from_sibling(const std::vector<Run>& own, const std::vector<Run>& donors,
                                int gpus);

}  // namespace moesim::study
