#pragma once

#include <string>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"

namespace moesim::network {

// A byte matrix of N ranks. A .npy file holds shape [N, N] of int64, uint64, int32 or float64;
// anything else is CSV without a header: N lines of N numbers, row s what rank s sends, column d to
// rank d. The diagonal is kept; it is no communication. Throws UsageError naming the file and the
// line and column (CSV) or the element (.npy, counted from 0): not square, a text, a negative
// number, a fraction, not finite, more than 2^53 bytes in all.
ByteMatrix load_byte_matrix(const std::string& path);

// When each of `ranks` ranks begins to send, in microseconds: CSV without a header, one row or one
// column, or .npy of float64, shape [ranks]. Throws UsageError as above: another count, a text,
// below 0, not finite, longer than ten days.
std::vector<Picoseconds> load_start_times(const std::string& path, int ranks);

}  // namespace moesim::network
