#include "sim/uncertainty/few_softwares.hpp"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>

namespace moesim::uncertainty {

double few_softwares_reach(std::size_t softwares, double level) {
  const boost::math::students_t distribution(
      static_cast<double>(std::max<std::size_t>(softwares, 1)));
  return boost::math::quantile(distribution, (1 + level) / 2);
}

}  // namespace moesim::uncertainty
