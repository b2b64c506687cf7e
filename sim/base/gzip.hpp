#pragma once

#include <string>

namespace moesim {

// The whole text of `path`, or of `path` + ".gz" unpacked if only that is there. Throws UsageError
// naming both where neither is there or readable, and Error for a file cut short or, in a build
// without zlib, for any packed one.
std::string read_plain_or_packed(const std::string& path);

// The unpacked text of a gzip file (a plain one is taken as it is). Throws as above.
std::string read_gzip(const std::string& path);

}  // namespace moesim
