#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/base/cell.hpp"
#include "sim/base/enum_names.hpp"
#include "sim/scenario/option.hpp"
#include "sim/training/job/training_job.hpp"

namespace moesim::job {

// A training job while its options are resolved: documents, then values and plain defaults, then
// defaults that follow from other options, each in the order of job_options().
struct Resolution {
  const scenario::OptionValues& typed;
  training::TrainingJob& job;
  scenario::DocumentCache* documents = nullptr;  // that are known; null: each is read

  bool has(const std::string& option) const { return typed.contains(option); }
};

// Under which heading of a help text an option stands.
enum class Section { job, layout, precision, routing, machine };
inline constexpr EnumNames<Section, 5> section_names{{
    {Section::job, "Job"},
    {Section::layout, "Layout"},
    {Section::precision, "Precision and memory"},
    {Section::routing, "Routing"},
    {Section::machine, "Machine and software"},
}};

// What a search over jobs does with an option: takes its value, searches a list of them, or leaves
// no choice of it.
enum class InSearch { taken, searched, refused };

// An argument of Megatron-LM that an option follows from.
struct MegatronArgument {
  const char* name;        // without the dashes
  const char* value = "";  // the option's, where the argument is there; "": the argument's own
};

// One option of a training job: all that parsing, help, defaults, checks, columns, the search and
// Megatron-LM's arguments need to know of it.
struct JobOption {
  std::string name;  // without the dashes
  std::string placeholder;
  std::string default_text;  // as it would be typed, or in words: see `set_default`
  std::string help;
  std::vector<scenario::NamedValue> values;  // what it may be
  bool is_number = false;                    // ranges of values make sense
  Section section = Section::job;
  InSearch in_search = InSearch::taken;
  bool in_layout = false;      // needs no GPU: a layout alone has it too
  std::string layout_default;  // there, where it is another; else empty
  std::vector<MegatronArgument> megatron;

  // Sets the job's field. Throws UsageError that names the flag. Null: an option of routing, which
  // drawn_routing() takes.
  std::function<void(const std::string& text, Resolution&)> set;
  // A document is resolved before all that is none.
  bool is_document = false;
  // Whether `default_text` is in words: then `set_default` sets the field, if it is not null.
  bool default_in_words = false;
  void (*set_default)(Resolution&) = nullptr;
  // The value, as its column has it; null: none.
  std::function<Cell(const training::TrainingJob&)> value;
  // Its column is behind the others, in rows where the value is not the default: so options that
  // come later leave other rows as they are.
  bool rare = false;
  // Whether it says how the software is built, which tables of measured steps seldom print: kept of
  // such steps (built_options()).
  bool built_in = false;
  // Whether it goes together with the other options, once all are resolved, of a document before
  // routing; may be null. Throws UsageError that names the flags to change.
  void (*check)(const training::TrainingJob&) = nullptr;
  // What of it has no effect in this job, and why: "--tensor-overlap has no effect: ...", "" where
  // all of it has one; may be null.
  std::string (*idle)(const training::TrainingJob&) = nullptr;

  std::string flag() const { return "--" + name; }
  std::string column() const;  // "tensor_parallel"
  // Throws UsageError if the text makes no sense whatever the other options are. Documents are not
  // looked at: find_document() is.
  void check_text(const std::string& text) const;
  // Whether the row of the job has a column of it.
  bool in_rows_of(const training::TrainingJob& job) const;
};

}  // namespace moesim::job
