#pragma once

#include <cstddef>

namespace moesim::uncertainty {

// How far Student's t with as many degrees of freedom as softwares reaches with chance `level`, two
// sided, in standard deviations: a deviation between softwares is known from so many of them alone.
// At least one degree. Normal for many.
double few_softwares_reach(std::size_t softwares, double level);

}  // namespace moesim::uncertainty
