#pragma once

namespace moesim::tool {

// Opens the null device for each of stdin, stdout and stderr that the caller has closed (2>&-), so
// that no file of the command gets its number and, with that, the command's messages. A result for
// a closed stdout stays an error: the device is open for reading alone.
void open_standard_files();

}  // namespace moesim::tool
