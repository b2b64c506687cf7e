#pragma once

#include "tools/moesim/sweep/sweep_request.hpp"

namespace moesim::tool {

// Says that --resume found nothing to go on with.
void note_fresh_start(const Output& out);

// With --resume, and no interrupted sweep beside --out: takes the rows that a finished sweep in
// --out shares with this one as known. `of_several`: of several processes, which keep their parts
// in a folder. Returns whether these are all rows. Throws UsageError where the file is no CSV, has
// no row of this sweep, or rows that are compared with another baseline.
bool take_finished_rows(SweepRequest& request, bool of_several);

}  // namespace moesim::tool
