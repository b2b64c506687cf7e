#include "tools/moesim/rows/part_columns.hpp"

#include "sim/training/prices/passes.hpp"

namespace moesim::tool {

std::string part_column(const std::string& part) {
  std::string name;
  for (const char letter : part) {
    if (letter != ',') name += letter == ' ' ? '_' : letter;
  }
  return name + "_ms";
}

std::vector<std::string> training_part_columns() {
  std::vector<std::string> columns;
  for (const auto& part : training::part_names) columns.push_back(part_column(part.name));
  return columns;
}

}  // namespace moesim::tool
