#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/study/sweep/outcome.hpp"
#include "sim/study/sweep/sweep.hpp"

namespace moesim::report {

enum class ColumnKind { text, number, boolean };

struct Column {
  std::string name;
  ColumnKind kind = ColumnKind::text;
};

// The columns of a result, in order: status and reason, the options that reproduce the row, the
// figures. Shares in 0..1, units in the names; a cell that does not apply is empty.
const std::vector<Column>& result_columns();
// Those that a router run alone can fill.
const std::vector<Column>& route_columns();

// Cells by column name; what is absent is blank.
using Cells = std::map<std::string, std::string>;

// The options of a scenario as the columns print them: typed back, they give the same scenario.
Cells option_cells(const scenario::Scenario& scenario);
// The same of one that could not even be filled in: what was typed.
Cells typed_cells(const scenario::OptionValues& values);
// C, blank for a router without.
Cells capacity_cells(const routing::RouterConfig& router, std::int64_t capacity);
Cells loss_cells(const routing::TokenLoss& loss);
Cells outcome_cells(const scenario::Scenario& scenario, const study::Outcome& outcome);

// The cells of `columns` in order.
std::vector<std::string> row_of(const Cells& cells, const std::vector<Column>& columns);

// A row of result_columns(): `outcome` null for a refused scenario.
study::Row result_row(const study::SweepPoint& point, const study::Outcome* outcome,
                      const std::string& reason);
study::Row result_row(const scenario::Scenario& scenario, const study::Outcome& outcome);

// Nine significant digits, the shortest form of them: the same figure gives the same text
// everywhere.
std::string figure(double value);

}  // namespace moesim::report
