#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "sim/study/sweep/sweep.hpp"

namespace moesim::report {

// Rows of a finished sweep's CSV, as to_csv() writes it, that a new sweep need not compute.
struct FinishedRows {
  std::size_t in_file = 0;
  // The rows of the file by point of the new sweep: those with the same options whose status is ok.
  // That documents and program are those of then is not known from the file.
  std::map<std::size_t, study::Row> rows;
};

// `path` is a CSV of result_columns(). Points that repeat others are left out. Throws UsageError
// naming the file if it is none, or of another version's columns.
FinishedRows finished_rows(const std::string& path, const std::vector<study::SweepPoint>& points);

}  // namespace moesim::report
