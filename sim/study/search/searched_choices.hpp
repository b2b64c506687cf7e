#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/scenario/document_cache.hpp"
#include "sim/study/search/training_space.hpp"

namespace moesim::study {

// Where candidates_of() goes through the values of an option.
enum class ChosenFor {
  layout,  // each in the place that the rules of layouts give it
  family,  // one after the other, in the order of the table: TrainingFamily::common() has them
  job,     // within families
};

// Whether layouts that differ in an option alone are different ones for search_training().
enum class TellsApart { always, with_chunks, never };

struct ChoiceTraits {
  const char* option = "";   // as job::job_options() has it: how values are read and written
  const char* heading = "";  // of its column
  ChosenFor chosen_for = ChosenFor::family;
  TellsApart tells_apart = TellsApart::always;
  bool in_every_table = false;  // a column where a single value is searched, too
  bool leads = false;           // a column before the others of what has several values
  const char* of_twins = "";    // in what twins differ; "": the heading
  char separator = ',';         // of typed lists
  // Each value has to go together with the first ones of the other lists.
  bool checked_with_others = false;
  // Whether a value goes together with others depends on what else is searched.
  bool checked_by_search = false;
  // Whether a job has the value that it has without the option, so that its command needs none;
  // null: where it is written as the option's default.
  bool (*is_default)(const training::TrainingJob&) = nullptr;
};

// An option of a training job that a search takes a list of values of, in `TrainingSpace`.
class SearchedChoice {
 public:
  explicit SearchedChoice(const ChoiceTraits& traits) : traits_(traits) {}
  virtual ~SearchedChoice() = default;
  SearchedChoice(const SearchedChoice&) = delete;
  SearchedChoice& operator=(const SearchedChoice&) = delete;

  const ChoiceTraits& traits() const { return traits_; }
  std::string option() const { return traits_.option; }
  // Whether a search has values of its own unless some are typed; else it takes that of its base.
  virtual bool has_usual_values() const = 0;
  // Whether a search that starts from a step chooses it, unless values are typed; else it takes
  // that of the step.
  bool is_left_to_search() const {
    return has_usual_values() || traits_.chosen_for == ChosenFor::layout;
  }

  // The value of a job, as it is typed.
  std::string text(const training::TrainingJob& job) const;
  // Whether a job has it without the option.
  bool is_default(const training::TrainingJob& job) const;
  // Sets the value of a job. `documents`: read before; null: it is read. Throws UsageError naming
  // the flag.
  void set(const std::string& text, training::TrainingJob& job,
           scenario::DocumentCache* documents = nullptr) const;

  virtual std::size_t count(const TrainingSpace& space) const = 0;
  // Gives a job value number `at` of a space.
  virtual void put(const TrainingSpace& space, std::size_t at,
                   training::TrainingJob& job) const = 0;
  virtual void clear(TrainingSpace& space) const = 0;
  // Adds the value of a job.
  virtual void append(const training::TrainingJob& job, TrainingSpace& space) const = 0;
  // Adds it unless a job of the space's base has a value that is written like it.
  void add(const training::TrainingJob& job, TrainingSpace& space) const;
  // Leaves the value of a job alone.
  void keep(const training::TrainingJob& job, TrainingSpace& space) const;
  // Takes the usual values, those of space.base.
  virtual void take_usual(TrainingSpace& space) const = 0;
  virtual bool has_values_of(const TrainingSpace& space, const TrainingSpace& other) const = 0;
  virtual void take_values(const TrainingSpace& from, TrainingSpace& space) const = 0;

  // Whether two jobs have the same value. `rest`: a job with this layout, or with another.
  virtual bool is_same(const parallel::LayoutRequest& layout, const training::TrainingJob& rest,
                       const parallel::LayoutRequest& other,
                       const training::TrainingJob& other_rest) const = 0;
  bool is_same(const training::TrainingJob& one, const training::TrainingJob& other) const {
    return is_same(one.layout, one, other.layout, other);
  }

 private:
  ChoiceTraits traits_;
};

using SearchedChoices = std::vector<std::unique_ptr<const SearchedChoice>>;

// Every option that is searched but for those of routing (TrainingSpace::routings): a row each, in
// the order of commands. All that a search, its report and its commands need to know of one more is
// its list in TrainingSpace and its row here; it is `searched()` in sim/job too.
const SearchedChoices& searched_choices();
// Null: there is none of an option of that name.
const SearchedChoice* searched_choice(std::string_view option);
// Throws Error where there is none.
const SearchedChoice& searched_choice_named(std::string_view option);

}  // namespace moesim::study
