#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/base/cell.hpp"
#include "sim/scenario/option.hpp"
#include "sim/study/sweep/outcome.hpp"

namespace moesim::study {

enum class ColumnType { text, number, boolean };
// What a column is: status and reason, an option, a figure of the step, one of the losses, one of
// the parts that sum to the step, or where the figures come from.
enum class ColumnRole { status, option, figure, loss, part, provenance };

struct Column {
  std::string name;
  ColumnType type = ColumnType::text;
  ColumnRole role = ColumnRole::option;
  std::string unit = "";     // "ms", "GiB", ...; "share" is in 0..1
  bool in_route = false;     // a router run alone has it too
  std::string meaning = "";  // of a figure; an option has its help
};

// The columns of a result, in order. What does not apply has no cell.
const std::vector<Column>& result_columns();
// The columns that a router run alone can fill, in the same order.
const std::vector<Column>& route_columns();
std::vector<std::string> names_of(const std::vector<Column>& columns);
// The place of a column in result_columns(). Throws Error for a name that is none of theirs.
std::size_t column_index(const std::string& name);

// The cells of result_columns() or route_columns().
using Row = std::vector<Cell>;

Row result_row(const scenario::Scenario& scenario, const Outcome& outcome);
Row route_row(const scenario::Scenario& scenario, const Outcome& outcome);
// The row of a scenario that cannot be: the options of `scenario`, or where that is null those that
// were typed.
Row refused_row(const scenario::Scenario* scenario, const scenario::OptionValues& typed,
                const std::string& reason);

// A loss of tokens, with its column.
struct LossFigure {
  const char* name;
  const char* meaning;
  Cell (*cell)(const routing::TokenLoss& loss);
};
const std::vector<LossFigure>& loss_figures();

}  // namespace moesim::study
