#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/study/sweep/result_row.hpp"

namespace moesim::report {

// Rows on another machine than the only baseline, in words, at most three of them, and what of the
// software cancels there: "" where there are none or more. Of several rows of one machine only that
// which differs in profile and cluster alone; a single one may differ in more, such as in a default
// that follows the machine, which is said. `options`: the columns of options in which rows differ.
// Left out are two profiles of one kind of GPU, whose ratio is of the profiles, and profiles that
// cannot be read.
std::string machine_lines(const std::vector<study::Row>& rows,
                          const std::vector<std::size_t>& options);

}  // namespace moesim::report
