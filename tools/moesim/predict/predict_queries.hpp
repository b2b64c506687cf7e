#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/formats/csv.hpp"
#include "sim/profile/predict.hpp"
#include "tools/moesim/predict/predict_source.hpp"

namespace moesim::tool {

// A file of queries: columns op, profile and the parameters, spelt with - or _. Columns note and id
// pass through; a cell is empty where its row's operation does not take the parameter.
class Queries {
 public:
  // `default_op` is that of rows that name none. Throws UsageError naming file, line and column: a
  // column of another name, one twice, or one that answers add.
  Queries(const std::string& path, const std::string& default_op);

  // The answers in the order of the rows. A row whose values have no answer is refused, with the
  // reason; all others are answered. Throws UsageError naming file, line and column of a row that
  // is wrong: text that is no number, a negative one, a name that nothing has, a cell missing or
  // too many.
  std::vector<QueryAnswer> answers(QuerySource& source) const;

  // The rows with the answers' columns behind; columns status and reason if one was refused.
  std::string csv(const std::vector<QueryAnswer>& answers) const;

  // File and line of a row.
  std::string where(std::size_t row) const;

 private:
  QueryAnswer answer(QuerySource& source, std::size_t row) const;
  std::vector<std::pair<std::string, std::string>> passed_through(std::size_t row) const;
  QueryParams params_of(const profile::PredictedOperation& op, std::size_t row) const;
  // Throws UsageError for text that is no number and negative ones, NoAnswer for others that cannot
  // be.
  void check_values(const QueryParams& params) const;

  CsvTable table_;
  std::string default_op_;
  std::map<std::string, std::size_t> columns_;  // of each parameter
};

}  // namespace moesim::tool
