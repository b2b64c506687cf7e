#pragma once

namespace moesim::tool {

// The git commit this program was built from, "-dirty" behind it where files had been changed; ""
// if it was built from no checkout. Written by tools/cmake/Commit.cmake in each build.
const char* source_commit();

}  // namespace moesim::tool
