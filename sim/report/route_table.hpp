#pragma once

#include <string>
#include <vector>

#include "sim/report/formats.hpp"
#include "sim/study/sweep/result_row.hpp"

namespace moesim::report {

// One line per row of a router run alone, for people: the router, the capacity factor, other
// options where rows differ in them, and every loss that one of the rows has. Shares are in
// percent. `columns` are those of the rows. Losses that depend on weights which were not recorded
// have a mark, in rows with a cell in the column loss_basis.
inline constexpr const char* loss_basis_column = "loss_basis";
std::string route_table(const std::vector<study::Column>& columns,
                        const std::vector<CellRow>& rows);

}  // namespace moesim::report
