#pragma once

#include <cstdint>

#include "kernels/measure/suites/suite.hpp"

namespace moesim::kernels::measure {

// Columns of a memory point's arrays, as hidden sizes and FFN widths are.
constexpr std::int64_t memory_columns = 4096;

// A memory-bound kernel ("streaming", "activation", "normalization") on [rows, memory_columns] bf16
// arrays, so many of them read and one written.
PointSpec memory_point(const char* kernel, std::int64_t rows, int arrays_read);

Suite memory_suite();

}  // namespace moesim::kernels::measure
