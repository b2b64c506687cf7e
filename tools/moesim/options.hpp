#pragma once

#include <nlohmann/json_fwd.hpp>

namespace moesim::tool {

// What `moesim options --format json` prints and the plotter reads: report::options_document(), and
// "training_options": [{"column", "default"}], the columns in which `train` writes its own options,
// and "training_parts", those of the parts that sum to its step.
nlohmann::ordered_json all_options();

}  // namespace moesim::tool
