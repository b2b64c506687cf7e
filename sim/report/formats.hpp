#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/base/cell.hpp"
#include "sim/base/enum_names.hpp"

namespace moesim::report {

enum class Format { table, csv, json };
inline constexpr EnumNames<Format, 3> format_names{
    {{Format::table, "table"}, {Format::csv, "csv"}, {Format::json, "json"}}};
// Throws UsageError listing the formats.
Format parse_format(const std::string& text);

// Nine significant digits, the shortest form of them: the same figure gives the same text
// everywhere. Empty where it is not finite.
std::string figure(double value);
// The number that these digits say, as JSON: 5, not 5.0.
nlohmann::ordered_json json_figure(double value);

// A cell as CSV has it: figures as above, an absent cell empty.
std::string text_of(const Cell& cell);

// Rows of cells under the names of their columns, as files. An absent cell is null in JSON, as is
// an empty text; lines end in '\n'.
using CellRow = std::vector<Cell>;
std::string to_csv(const std::vector<std::string>& columns, const std::vector<CellRow>& rows);
nlohmann::ordered_json to_json(const std::vector<std::string>& columns, const CellRow& row);
std::string to_json_text(const std::vector<std::string>& columns,
                         const std::vector<CellRow>& rows);  // an array

// The name of the share of slots that stay empty, from the cells of `padding` in the same rows
// (absent: no slots): "padded" where every exchange of slots sends them, else "empty".
std::string empty_slots_name(const std::vector<Cell>& padding);

// Aligned columns for people: text left, the rest right. The first row of `lines` is the heading.
std::string align(const std::vector<std::vector<std::string>>& lines,
                  const std::vector<bool>& right);

}  // namespace moesim::report
