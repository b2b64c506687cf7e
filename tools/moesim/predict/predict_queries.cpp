#include "tools/moesim/predict/predict_queries.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "sim/base/contains.hpp"
#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/shipped.hpp"

namespace moesim::tool {
namespace {

const std::vector<std::string> passed_columns{"note", "id"};
const std::vector<std::string> refusal_columns{"status", "reason"};

}  // namespace

Queries::Queries(const std::string& path, const std::string& default_op)
    : table_(CsvTable::load(path)), default_op_(default_op) {
  std::set<std::string> parameters = all_parameters();
  parameters.insert("profile");
  std::vector<std::string> known(parameters.begin(), parameters.end());
  known.emplace_back("op");
  known.insert(known.end(), passed_columns.begin(), passed_columns.end());
  for (std::size_t column = 0; column < table_.columns.size(); ++column) {
    const std::string& title = table_.columns[column];
    const std::string what = fmt::format("{}: line 1, column {}", path, title);
    std::string name = title;
    std::replace(name.begin(), name.end(), '_', '-');
    if (contains(answer_columns(), title) || title == bus_column) {
      throw UsageError(what + ": a column that predict adds is there already: rename or remove it");
    }
    if (!contains(known, name)) {
      throw UsageError(fmt::format(
          "{}: predict knows no such parameter{}: remove the column, or name it note or id, which "
          "pass through; known are {}",
          what, suggestion(name, known), fmt::join(known, ", ")));
    }
    if (name == "op" || name == "profile") {
      const auto first = std::find(table_.columns.begin(), table_.columns.end(), title);
      if (first != table_.columns.begin() + static_cast<std::ptrdiff_t>(column)) {
        throw UsageError(fmt::format("{}: a second column of {}", what, name));
      }
    }
    if (parameters.count(name) == 0) continue;
    if (!columns_.emplace(name, column).second) {
      throw UsageError(fmt::format("{}: a second column of {}", what, name));
    }
  }
  if (default_op.empty()) table_.column("op");
}

std::vector<QueryAnswer> Queries::answers(QuerySource& source) const {
  std::vector<QueryAnswer> answers;
  for (std::size_t row = 0; row < table_.rows.size(); ++row) {
    answers.push_back(answer(source, row));
    answers.back().passed_through = passed_through(row);
  }
  return answers;
}

std::vector<std::pair<std::string, std::string>> Queries::passed_through(std::size_t row) const {
  std::vector<std::pair<std::string, std::string>> cells;
  for (std::size_t column = 0; column < table_.columns.size(); ++column) {
    if (!contains(passed_columns, table_.columns[column])) continue;
    cells.emplace_back(table_.columns[column], table_.rows[row][column]);
  }
  return cells;
}

std::string Queries::csv(const std::vector<QueryAnswer>& answers) const {
  const bool has_refused =
      std::any_of(answers.begin(), answers.end(),
                  [](const QueryAnswer& answer) { return !answer.refusal.empty(); });
  std::vector<std::string> columns = table_.columns;
  columns.insert(columns.end(), answer_columns().begin(), answer_columns().end());
  const bool has_bus = has_bus_bandwidth(answers);
  if (has_bus) columns.emplace_back(bus_column);
  if (has_refused) columns.insert(columns.end(), refusal_columns.begin(), refusal_columns.end());
  std::string text = csv_line(columns);
  for (std::size_t row = 0; row < answers.size(); ++row) {
    std::vector<std::string> cells = table_.rows[row];
    const std::vector<std::string> added = answer_cells(answers[row]);
    cells.insert(cells.end(), added.begin(), added.end());
    if (has_bus) cells.push_back(bus_cell(answers[row]));
    if (has_refused) {
      const std::string& reason = answers[row].refusal;
      cells.insert(cells.end(), {reason.empty() ? "ok" : "refused", reason});
    }
    text += csv_line(cells);
  }
  return text;
}

std::string Queries::where(std::size_t row) const {
  return fmt::format("{}: line {}", table_.name, table_.lines[row]);
}

QueryAnswer Queries::answer(QuerySource& source, std::size_t row) const {
  const std::size_t op_column = table_.find("op");
  std::string op = op_column == CsvTable::npos ? "" : table_.rows[row][op_column];
  if (op.empty()) op = default_op_;
  const profile::PredictedOperation* operation = nullptr;
  try {
    operation = &profile::find_operation(op);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}, column op: {}", where(row), error.what()));
  }
  const QueryParams params = params_of(*operation, row);
  QueryAnswer refused;
  refused.op = op;
  refused.params = params;
  const char* between = ", ";  // a column follows
  try {
    check_values(params);
    between = ": ";
    return source.ask(op, params);
  } catch (const NoAnswer& error) {
    refused.refusal = error.what();
  } catch (const Error& error) {
    if (error.code() != ExitCode::failure) {
      throw Error(fmt::format("{}{}{}", where(row), between, error.what()), error.code());
    }
    refused.refusal = error.what();
  }
  return refused;
}

void Queries::check_values(const QueryParams& params) const {
  for (const auto& [name, text] : params) {
    try {
      check_parameter(name, text, fmt::format("column {}", table_.columns[columns_.at(name)]));
    } catch (const NoAnswer& error) {
      if (text.starts_with('-')) throw UsageError(error.what());  // a slip, not a point of a grid
      throw;
    }
  }
}

QueryParams Queries::params_of(const profile::PredictedOperation& op, std::size_t row) const {
  const auto cell = [&](const std::string& name) {
    const auto column = columns_.find(name);
    return column == columns_.end() ? std::string() : table_.rows[row][column->second];
  };
  const std::vector<std::string> taken = parameters_of(op);
  QueryParams params;
  for (const auto& [name, column] : columns_) {
    const std::string& text = table_.rows[row][column];
    if (text.empty()) continue;
    const std::string what = fmt::format("{}, column {}", where(row), table_.columns[column]);
    if (!contains(taken, name)) {
      throw UsageError(
          fmt::format("{}: {} takes no {}: leave the cell empty", what, op.name, name));
    }
    params[name] = text;
  }
  // A byte matrix and a load of experts stand for other parameters.
  if (params.count("matrix") != 0 || params.count("rows-per-expert") != 0) return params;
  for (const std::string& name : op.parameters) {
    if (!cell(name).empty()) continue;
    throw UsageError(
        fmt::format("{}, column {}: {} needs a value here", where(row), name, op.name));
  }
  return params;
}

}  // namespace moesim::tool
