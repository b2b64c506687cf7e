#pragma once

#include <string>
#include <vector>

#include "sim/study/search/training_search.hpp"
#include "tools/moesim/recommend/request/recommend_request.hpp"
#include "tools/moesim/rows/named_cells.hpp"

namespace moesim::tool {

// Columns of a table of steps: sizes of the layout, and what is searched beside layouts.
std::vector<std::string> layout_names();
std::vector<std::string> layout_cells(const training::TrainingJob& job);
void append(std::vector<std::string>& cells, const std::vector<std::string>& more);

// What is searched beside layouts, where the steps differ in it.
class Extras {
 public:
  explicit Extras(const study::TrainingSearch& search);
  // Adds what another search has, and what the steps found by both differ in.
  void add(const study::TrainingSearch& search, const training::TrainingJob& found,
           const training::TrainingJob& found_by_this);
  std::vector<std::string> names() const;
  std::vector<std::string> cells(const training::TrainingJob& job) const;

 private:
  bool router_ = false;
  bool capacity_ = false;
  std::vector<bool> choices_;  // of study::searched_choices()
};

// Columns of figures; those of words start at the left.
std::vector<bool> right_aligned(const std::vector<std::string>& names);

// A row of a result: what `moesim train --from` and `moesim plot` take, and the command. Its
// balanced_step_ms is empty where the step lacks study::add_forced_step().
NamedCells row_of(const RecommendRequest& request, const study::FoundStep& found);

}  // namespace moesim::tool
