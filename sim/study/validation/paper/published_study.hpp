#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/scenario/options.hpp"
#include "sim/step/kernels/kernels.hpp"

namespace moesim::study {

// What a published figure is for.
enum class RowRole {
  fit,       // the calibration is fitted to it
  check,     // predicted with the fitted calibration, not used by it
  excluded,  // left out of fit and bars a priori, for the reason in `note`; error shown apart
  predict,   // nothing published here: a prediction alone
};
inline constexpr EnumNames<RowRole, 4> row_role_names{{
    {RowRole::fit, "fit"},
    {RowRole::check, "check"},
    {RowRole::excluded, "excluded"},
    {RowRole::predict, "predict"},
}};
constexpr const char* name_of(RowRole role) { return name_in(row_role_names, role); }

struct PublishedRow {
  RowRole role = RowRole::predict;
  scenario::OptionValues options;  // of this row, over those of the study
  std::optional<double> tokens_per_s_per_gpu;
  std::string note;
};

// A multiplier on the predictions of some kernel classes, which a study has fitted to its rows.
struct StudyMultiplier {
  std::string name;
  std::vector<step::KernelClass> classes;
  std::string why;
};

// Mean and worst absolute relative error in 0..1, at most.
struct ErrorLimit {
  double mean = 1;
  double worst = 1;
};

// A table of published speeds and what to hold against it (profiles/studies, schema
// profiles/schema/study.schema.json).
struct PublishedStudy {
  std::string name;
  std::string title;
  std::string source;
  scenario::OptionValues options;  // of all rows
  std::vector<StudyMultiplier> unknowns;
  std::vector<PublishedRow> rows;
  ErrorLimit in_sample;
  ErrorLimit leave_one_out;
  ErrorLimit unfitted;  // of the `check` rows

  // Shipped name or path. Throws UsageError naming file and key.
  static PublishedStudy load(const std::string& name_or_path);
};

}  // namespace moesim::study
