#pragma once

#include <string>
#include <string_view>

namespace moesim {

// The whole file. Throws UsageError naming the path and the reason (absent, a folder, unreadable).
std::string read_file(const std::string& path);

// Writes the whole file or nothing: to a temporary file beside it, flushed to the disk, then
// renamed over `path`. Throws Error naming the path and the reason (no such folder, no permission,
// disk full); the old content, if any, is then untouched and the temporary file is gone.
void write_file_atomically(const std::string& path, std::string_view content);

// Throws Error at once if `path` could not be written, so that long work does not end in a
// refusal. Leaves nothing behind.
void check_writable(const std::string& path);

}  // namespace moesim
