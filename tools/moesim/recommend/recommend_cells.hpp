#pragma once

#include <string>
#include <vector>

#include "sim/study/search/training_search.hpp"
#include "tools/moesim/recommend/recommend_request.hpp"
#include "tools/moesim/rows/named_cells.hpp"

namespace moesim::tool {

// What a step may take of a GPU's memory.
double room_gib(const study::TrainingSearch& search);
// "a" for the first of the front, "z", "aa" and so on; those of the best have numbers.
std::string front_name(std::size_t place);
// "86,016"
std::string count_text(std::size_t count);
// "812 ms", "83.9 s"
std::string step_text(double us);

// "2, 3 and 5"
std::string places_text(const std::vector<std::size_t>& numbers);
std::string chance_text(double chance);  // "a chance of 75 % or more"

// What a step gives up against the best: "2.1 % speed, 11 GiB, 0.30 % of tokens' weight".
// `speed`: over that of the best; the others are more than it takes.
std::string given_up_text(double speed, double gib, double loss);

// "bf16 or fp8-block": those that are searched.
std::string precisions_text(const study::TrainingSearch& search);
// "the least takes 107.2 GiB". Precondition: nothing fits.
std::string least_memory_text(const study::TrainingFound& found);

// A line of the heading: which routers and capacity factors were searched, with which routing; ""
// of a model without experts.
std::string routing_line(const study::TrainingSearch& search);

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
