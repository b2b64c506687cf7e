#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/profile/collective_curve.hpp"
#include "sim/profile/node_links.hpp"
#include "sim/study/validation/exchanges/exchange_coverage.hpp"
#include "sim/study/validation/exchanges/exchange_errors.hpp"

namespace moesim::study {

// The samples of one run of an exchange, by GPU count.
using Counts = std::map<int, Samples>;

// What a curve says of its errors, by size, in logs; empty: not said.
struct CutErrors {
  std::vector<SizeReach> law;      // of more GPUs; empty: profile::errors_of_law()
  std::vector<SizeReach> scatter;  // of other runs of the machine; empty: the curve is one's own
};

// The curve of a profile that has measured `kept` of the GPU counts of a run and no more, asked for
// up to `up_to` GPUs: what `moesim import` makes of a log of these counts (the median of each
// size's times), or with a scatter what shipped profiles have. Nothing where the times of a count
// make no curve. The curve throws NotMeasured where the law does not answer.
std::optional<profile::CollectiveCurve> curve_cut_to(profile::Collective kind,
                                                     const profile::NodeLinks& links,
                                                     const Counts& counts,
                                                     const std::vector<int>& kept, int up_to,
                                                     const CutErrors& errors);

}  // namespace moesim::study
