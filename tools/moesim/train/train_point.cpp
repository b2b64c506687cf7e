#include "tools/moesim/train/train_point.hpp"

#include "sim/report/formats.hpp"
#include "tools/moesim/rows/part_columns.hpp"

namespace moesim::tool {

std::string TrainPoint::text(const std::string& column) const {
  return report::text_of(cell(column));
}

double TrainPoint::figure(const std::string& column) const {
  const Cell found = cell(column);
  const double* const value = std::get_if<double>(&found);
  return value == nullptr ? 0.0 : *value;
}

std::vector<double> part_times(const TrainPoint& point) {
  std::vector<double> times;
  for (const std::string& column : training_part_columns()) {
    times.push_back(point.figure(column) / point.figure("step_ms") * 1e6 /
                    point.figure("tokens_per_s_per_gpu"));
  }
  return times;
}

}  // namespace moesim::tool
