#pragma once

#include <string>
#include <vector>

#include "sim/uncertainty/software/step_fit.hpp"
#include "tools/moesim/calibrate/calibrate_rows.hpp"

namespace moesim::tool {

// The name of the document: --name, else that of the file of --out.
std::string name_of_document(const CommandLine& line);
// "moesim calibrate steps.csv": what the document is made from.
std::string source_of(const CommandLine& line);

// The document of `train` with its name, what its rows are of and how well they fit. `published`:
// whose published steps were the prior; `left_out`: as of rows_table().
uncertainty::StepSoftware named_software(const CommandLine& line, const std::string& published,
                                         const std::vector<CalibrationRow>& rows,
                                         const uncertainty::StepFit& fit,
                                         const std::vector<double>& left_out);

// A file as --profile takes it: one in this folder is no shipped name.
std::string as_profile(const std::string& out);
// Says which commands take the document.
void note_written(const std::string& out, const uncertainty::StepSoftware& software);

}  // namespace moesim::tool
