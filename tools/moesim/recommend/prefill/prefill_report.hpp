#pragma once

#include <string>

#include "sim/report/formats.hpp"
#include "sim/study/search/prefill_search.hpp"

namespace moesim::tool {

// table: what was searched and assumed, the best, how sure their order is, the front, the commands;
// csv and json: a row of each pass that is among the best or on the front, with the columns of a
// sweep, its place and its command.
std::string rendered_passes(const study::PrefillSearch& search, const study::PrefillFound& found,
                            report::Format format);

}  // namespace moesim::tool
