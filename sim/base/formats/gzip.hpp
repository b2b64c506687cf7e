#pragma once

#include <cstddef>
#include <string>

namespace moesim {

// A kilobyte can unpack to a megabyte: more than this is refused.
inline constexpr std::size_t most_unpacked_bytes = std::size_t{1} << 31;

// The whole text of `path`, or of `path` + ".gz" unpacked if only that is there. Throws UsageError
// naming both where neither is there or readable, and Error for a file cut short or, in a build
// without zlib, for any packed one; UsageError for one that unpacks to more than the bound.
std::string read_plain_or_packed(const std::string& path);

// The unpacked text of a gzip file (a plain one is taken as it is). Throws as above.
std::string read_gzip(const std::string& path);

// A gzip file of `text`: the same bytes at any time. Throws Error in a build without zlib.
std::string packed(const std::string& text);

}  // namespace moesim
