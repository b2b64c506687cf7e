#pragma once

#include <cstddef>
#include <string>

#include "sim/base/formats/csv.hpp"
#include "sim/scenario/option.hpp"

namespace moesim::study {

// A row of smartmoe_gpt_step_times.csv, as the simulator is asked for it.
struct SmartMoeRow {
  std::string subject;  // "fastmoe, gshard, library CF 1.2"
  scenario::OptionValues options;
  std::string refusal;  // why it cannot be simulated; "": it can
};
SmartMoeRow smartmoe_row(const CsvTable& table, std::size_t row);

// Whether a row has no capacity: it can be simulated once something is known of its routing.
bool has_no_capacity(const CsvTable& table, std::size_t row);

}  // namespace moesim::study
