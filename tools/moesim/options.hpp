#pragma once

#include <nlohmann/json_fwd.hpp>

namespace moesim::tool {

// What `moesim options --format json` prints and the plotter reads: report::options_document(), and
// "training_options": [{"column", "default"}], the columns in which `train` writes its own options,
// "training_parts", those of the parts that sum to its step, and "cluster_gpus": {cluster: GPU}, of
// shipped clusters whose GPUs are not those of the profile.
nlohmann::ordered_json all_options();

}  // namespace moesim::tool
