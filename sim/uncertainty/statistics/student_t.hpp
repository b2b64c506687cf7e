#pragma once

#include <cstddef>

namespace moesim::uncertainty {

// How far Student's t reaches with chance `level`, two sided, in standard deviations. `degrees` of
// freedom: positive. Normal for many.
double student_t_reach(double degrees, double level);

// The same where a deviation between kinds of something, such as software, is known from so many of
// them: as many degrees, at least one.
double few_kinds_reach(std::size_t kinds, double level);

}  // namespace moesim::uncertainty
