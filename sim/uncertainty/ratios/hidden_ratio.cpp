#include "sim/uncertainty/ratios/hidden_ratio.hpp"

#include <algorithm>

namespace moesim::uncertainty {

void widen_by_hidden(double one, double other, Band& ratio) {
  for (BandLevel& each : ratio.levels) {
    each.log_ratios.high += std::max(0.0, one - other);
    each.log_ratios.low -= std::max(0.0, other - one);
  }
}

}  // namespace moesim::uncertainty
