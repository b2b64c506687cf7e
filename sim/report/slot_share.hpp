#pragma once

#include <string>
#include <vector>

#include "sim/base/cell.hpp"

namespace moesim::report {

// The column of a table that says how many slots stay empty.
class SlotShares {
 public:
  // A row's cells of the columns padding and capacity: without both there are no slots (dropless).
  void add(const Cell& padding, const Cell& capacity);
  bool any() const { return any_; }  // the table has the column
  std::string heading() const;       // "padded %", see empty_slots_name()

  static bool has_slots(const Cell& padding, const Cell& capacity);

 private:
  std::vector<Cell> padding_;
  bool any_ = false;
};

}  // namespace moesim::report
