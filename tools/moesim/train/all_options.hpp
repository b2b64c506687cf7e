#pragma once

#include <nlohmann/json_fwd.hpp>

namespace moesim::tool {

// What `moesim options --format json` prints and the plotter reads: report::options_document(), and
// "training_options": [{"column", "default"}], the columns in which `train` writes its own options,
// "training_columns": [{"name", "unit"}], those of its figures (train_columns()), "training_parts",
// those of the parts that sum to its step, "cluster_gpus": {cluster: GPU}, of shipped clusters that
// name their GPUs, and "profile_gpus": {profile: GPU}, of all shipped ones.
nlohmann::ordered_json all_options();

}  // namespace moesim::tool
