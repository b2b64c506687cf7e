#pragma once

#include <cstddef>
#include <vector>

#include "sim/study/sweep/sweep.hpp"

namespace moesim::tool {

// What a sweep says on stderr of its scenarios, before anything is simulated, and of its rows. Each
// prints nothing where it has no reason.

// Says where several numbers of GPUs have expert groups of one size that nobody chose: the speed of
// a GPU then hardly changes, as more GPUs are more such groups.
void note_usual_groups(const scenario::OptionValues& typed,
                       const std::vector<const scenario::Scenario*>& scenarios);

// Warns how many scenarios cannot fit whatever their routing is, with what would make the nearest
// of them fit if its experts are balanced.
void warn_of_too_large(const std::vector<study::SweepPoint>& points);

bool is_refused(const study::Row& row);

// Warns how many rows are refused, with the reason of the first. Returns how many.
std::size_t warn_of_refused(const std::vector<study::Row>& rows);

// Warns how many rows need more memory than a GPU has: the fastest may be among them.
void warn_of_unfit(const std::vector<study::Row>& rows);

// Says how many rows have an mfu above 1, and why that is no error.
void note_high_mfu(const std::vector<study::Row>& rows);

// Warns of routers that have another k than most, where their names do not say it (top1 does):
// token loss is a share of the k experts of a token, so that losses do not compare. Charts mark the
// same routers (differing_k() of tools/plot/chart_data.py).
void warn_of_differing_k(const std::vector<study::Row>& rows);

}  // namespace moesim::tool
