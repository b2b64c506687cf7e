#include "sim/uncertainty/statistics/student_t.hpp"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>

namespace moesim::uncertainty {

double student_t_reach(double degrees, double level) {
  return boost::math::quantile(boost::math::students_t(degrees), (1 + level) / 2);
}

double few_kinds_reach(std::size_t kinds, double level) {
  return student_t_reach(static_cast<double>(std::max<std::size_t>(kinds, 1)), level);
}

}  // namespace moesim::uncertainty
