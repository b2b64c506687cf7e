# cmake -DSOURCE=FOLDER -DOUT=FILE -P Commit.cmake: writes the C++ source of source_commit(), the
# git commit of the checkout in FOLDER, "" where it is none. The file is left alone if it says so
# already, so that a build without a new commit compiles nothing.
set(commit "")
find_program(GIT git)
if(GIT)
  # A tree inside someone else's checkout has no commit of its own.
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-toplevel
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH ${SOURCE} source)
  if("${top}" STREQUAL "${source}")
    execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
      OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
#include "tools/moesim/base/commit.hpp"

namespace moesim::tool {
const char* source_commit() { return "@commit@"; }
}  // namespace moesim::tool
]])
