#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/training/job/training_job.hpp"
#include "sim/training/step/training_step.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "sim/uncertainty/ratios/capacity_ratio.hpp"
#include "sim/uncertainty/ratios/software_ratio.hpp"
#include "sim/uncertainty/software/step_software.hpp"

namespace moesim::tool {

// The column of a step of one's own software whose document prices the host: milliseconds that it
// gains for each unit of the log of the host's times.
inline constexpr const char* host_gain_column = "host_gain_ms";

// What the ratio of two steps of one's own software depends on: for a step as that software runs
// it, and for a row of `train` of which this is known. `model`: the name that its document gives
// itself. `parts`: part_times(). `host_gain_ms`: of host_gain_column, if its cell is filled.
uncertainty::OwnStep own_step(const training::TrainingJob& job, const training::TrainingStep& step);
uncertainty::OwnStep own_step(const std::string& model, const std::string& precision,
                              const std::vector<double>& parts, double step_ms,
                              const uncertainty::StepExchanges& exchanges,
                              std::optional<double> host_gain_ms);

// The name that the document of a model gives itself: a row has what was typed, which may be the
// path of a copy. The text itself where there is no such document here.
std::string model_in(const std::string& typed);

// The band of log(measured / predicted ratio) of two steps on a cluster. `unmeasured`: the standard
// deviation by what one of them has, the other has not, and none of the software's rows has.
uncertainty::Band own_ratio_band(const uncertainty::StepSoftware& software,
                                 const std::string& cluster, const uncertainty::OwnStep& one,
                                 const uncertainty::OwnStep& other, double unmeasured);

// Whether the first of two bands of one ratio is narrower, at the widest level of either.
bool is_narrower(const uncertainty::Band& one, const uncertainty::Band& other);

}  // namespace moesim::tool
