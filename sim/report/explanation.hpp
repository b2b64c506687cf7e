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

}  // namespace moesim::report
