#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "sim/uncertainty/ratios/capacity_ratio.hpp"

namespace moesim::tool {

// A number in one form, since files of CSV and JSON have others; other text as it is.
std::string plain_number(const std::string& text);

// What a row of `train` says of a step but router and capacity: equal for steps that differ in
// these alone. Nothing where its blocks are not padded to a capacity: it then depends on a routing
// that published steps do not tell. `text_in`: the text of a column, "" where there is none.
std::optional<std::string> all_but_capacity(
    const std::function<std::string(const std::string& column)>& text_in);

// The same of a job.
std::optional<std::string> all_but_capacity(const training::TrainingJob& job);

// The text of a cell as a size of a layout, 1 to 2^20; nothing for other text.
std::optional<int> layout_size(const std::string& text);

// What the exchanges of such steps pass: of a job, or of a row of `train`. `size_in`: a size of the
// layout by its column, nothing where the row does not tell it; then nothing is known of them.
uncertainty::StepExchanges step_exchanges(const training::TrainingJob& job);
std::optional<uncertainty::StepExchanges> step_exchanges(
    const std::function<std::optional<int>(const std::string& column)>& size_in,
    const cluster::Cluster& cluster);

// The band of log(measured / predicted ratio) of two such steps of one layout. `one`, `other`:
// uncertainty::part_times().
uncertainty::Band capacity_pair_band(const std::vector<double>& one,
                                     const std::vector<double>& other,
                                     const uncertainty::StepExchanges& exchanges);

// "48 published pairs that differ in router and capacity alone".
std::string capacity_pairs_text();

}  // namespace moesim::tool
