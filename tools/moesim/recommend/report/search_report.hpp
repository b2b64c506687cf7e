#pragma once

#include <string>
#include <vector>

#include "sim/report/formats.hpp"
#include "sim/study/search/training_search.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/recommend/request/recommend_request.hpp"

namespace moesim::tool {

// table: the best, how sure their order is, the front, the commands; csv and json: a row of each
// step that is among the best or on the front.
std::string rendered_search(const RecommendRequest& request, const study::TrainingFound& found,
                            report::Format format);

// A row of every step, in the order given; those that do not fit are marked.
std::string rendered_candidates(const RecommendRequest& request,
                                const std::vector<study::FoundStep>& steps);

// That all lose too much. Precondition: a front, and no best.
std::string too_lossy_text(const study::TrainingSearch& search, const study::TrainingFound& found);

// Why there is nothing to recommend, and what would help.
std::string nothing_fits(const study::TrainingSearch& search, const study::TrainingFound& found);

// Says how many layouts are in the file of --out, if there is one: `best` of them, and a front.
void note_written(std::size_t best, std::size_t front, const Output& out);

}  // namespace moesim::tool
