#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/cell.hpp"
#include "sim/uncertainty/published/step_errors.hpp"

namespace moesim::tool {

// What a step has and no measured step has, as its row has it.
struct UnmeasuredOfRow {
  std::vector<std::string> texts;  // text_of() each trait
  double deviation = 0;            // of the log of the step's time, by all of them
  // By each of them; empty where the row does not tell: files of former versions, and rows of
  // `recommend`, do not where there are several.
  std::vector<double> deviations;
  double hidden = 0;  // uncertainty::hidden_gain()
  // Whether the row tells that: rows of former versions do not, of steps of ZeRO 2 and 3.
  bool tells_hidden = true;
};

UnmeasuredOfRow unmeasured_of(const uncertainty::Band& band);
// `text_in`: the text of a column, "" where there is none.
UnmeasuredOfRow unmeasured_of(const std::function<std::string(const std::string& column)>& text_in);

// The standard deviation of the log of the ratio of two steps by what only one of them has: what
// both have cancels. All of a row's counts where some of its traits are shared and it does not tell
// the deviation of each.
double unmeasured_between(const UnmeasuredOfRow& one, const UnmeasuredOfRow& other);

// Of the band of the speed of `one` over that of `other`: widen_by_hidden() by what is not known of
// their exchanges. Where a row does not tell that, both are taken alike.
void widen_by_hidden(const UnmeasuredOfRow& one, const UnmeasuredOfRow& other,
                     uncertainty::Band& ratio);
// What is so taken of a step beside such a baseline; "" where its row tells.
std::string untold_hidden_text(const UnmeasuredOfRow& baseline);

// What a row of several such traits has more: the deviation of each (unmeasured_each_column). No
// cell where there are not several.
std::vector<std::pair<std::string, Cell>> unmeasured_cells(const uncertainty::Band& band);

}  // namespace moesim::tool
