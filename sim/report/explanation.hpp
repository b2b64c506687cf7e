#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/study/explain/explanation.hpp"

namespace moesim::report {

// The expected step beside the measured one, for a reader: the band, the parts, what is suspect.
std::string explanation_text(const scenario::Scenario& scenario,
                             const study::Explanation& explanation,
                             const study::Measured& measured);

// The same for programs: times in ms, shares of 1.
nlohmann::ordered_json explanation_json(const study::Explanation& explanation,
                                        const study::Measured& measured);

// Kernel times of a measured step by part, as CSV: part, calls, kernel_ms (in sum, hidden or not),
// exposed_ms (sums to the step with the row "idle": no kernel runs). Parts without kernels are left
// out.
std::string measured_parts_csv(const study::TracedStep& step);
// The three that take most of the step: "attention 12.3 ms, dispatch 4.56 ms, idle 1.2 ms".
std::string largest_parts_text(const study::TracedStep& step);

}  // namespace moesim::report
