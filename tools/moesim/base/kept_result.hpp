#pragma once

#include <string>
#include <vector>

#include "tools/moesim/base/output.hpp"

namespace moesim::tool {

// Writes a result of many rows, which may have taken hours. A file that it would replace is kept
// beside it as FILE.old, and a note says so, where it has a row with status ok (or, without that
// column, any) that `text` has not, by its cells of `options`, or a filled column that `text` has
// not. What is not read back is kept as soon as it differs: JSON, tables, other files.
void write_keeping(const Output& out, const std::string& text, report::Format format,
                   const std::vector<std::string>& options);
// One row, which is quickly computed: replaces a file of one row; one of several, as CSV or JSON,
// is kept as above.
void write_row_keeping(const Output& out, const std::string& text, report::Format format,
                       const std::vector<std::string>& options);

// A result that is quickly computed again: keeps a file of several rows with a column that `text`
// has not, rows of another command.
void write_keeping_others(const Output& out, const std::string& text);

// Columns of the options of `sweep`.
std::vector<std::string> sweep_option_columns();
// Those of `train`.
std::vector<std::string> train_option_columns();

}  // namespace moesim::tool
