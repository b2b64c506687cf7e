#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/report/result_row.hpp"

namespace moesim::report {

enum class Format { table, csv, json };
// Throws UsageError listing the formats.
Format parse_format(const std::string& text);

// Rows of text cells under their columns, as files. Numbers are numbers and blanks are null in
// JSON; lines end in '\n'.
std::string to_csv(const std::vector<Column>& columns,
                   const std::vector<std::vector<std::string>>& rows);
nlohmann::ordered_json to_json(const std::vector<Column>& columns,
                               const std::vector<std::string>& row);
std::string to_json_text(const std::vector<Column>& columns,
                         const std::vector<std::vector<std::string>>& rows);  // an array

// Aligned columns for people: text left, the rest right. The first row of `lines` is the heading.
std::string align(const std::vector<std::vector<std::string>>& lines,
                  const std::vector<bool>& right);

}  // namespace moesim::report
