#include "sim/routing/counts/count_growth.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace moesim::routing {

double Growth::operator()(double failed) const {
  if (failed <= 0) return 0;
  if (std::isinf(exponent)) return all ? 0 : 1;
  return all ? std::pow(failed, exponent) : 1 - std::pow(1 - std::min(failed, 1.0), exponent);
}

Growth fit_growth(bool all, double failed, double found, double independent) {
  if (failed <= 0 || failed >= 1) return {all, independent};
  if (all ? found <= 0 : found >= 1) return {all, std::numeric_limits<double>::infinity()};
  return {all, all ? std::log(found) / std::log(failed) : std::log1p(-found) / std::log1p(-failed)};
}

}  // namespace moesim::routing
