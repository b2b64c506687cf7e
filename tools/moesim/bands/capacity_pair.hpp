#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/uncertainty/step_errors.hpp"

namespace moesim::tool {

// What a row of `train` says of a step but router and capacity: equal for steps that differ in
// these alone. Nothing where its blocks are not padded to a capacity: it then depends on a routing
// that published steps do not tell. `text_in`: the text of a column, "" where there is none.
std::optional<std::string> all_but_capacity(
    const std::function<std::string(const std::string& column)>& text_in);

// The same of a job.
std::optional<std::string> all_but_capacity(const training::TrainingJob& job);

// Of log(measured / predicted ratio) of two such steps on so many GPUs of a cluster.
// `one`, `other`: uncertainty::part_times().
uncertainty::Band capacity_pair_band(const std::vector<double>& one,
                                     const std::vector<double>& other,
                                     const cluster::Cluster& cluster, int gpus);

// "48 published pairs that differ in router and capacity alone".
std::string capacity_pairs_text();

}  // namespace moesim::tool
