#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim {

// A file cannot be read; the message names it and the reason.
class UnreadableFile : public UsageError {
 public:
  UnreadableFile(std::string path, const std::string& message)
      : UsageError(message), path_(std::move(path)) {}
  const std::string& path() const { return path_; }  // as it was asked for

 private:
  std::string path_;
};

// The most that is read into memory: of a file; of a pipe or a terminal; of another device, which
// may never end (/dev/zero).
inline constexpr std::uint64_t most_file_bytes = std::uint64_t{16} << 30;
inline constexpr std::uint64_t most_stream_bytes = std::uint64_t{1} << 30;
inline constexpr std::uint64_t most_device_bytes = std::uint64_t{1} << 20;

// The whole file. Throws UnreadableFile naming the path and the reason (absent, a folder,
// unreadable, longer than the bounds above).
std::string read_file(const std::string& path);

// The same of a file that a document names. Throws UsageError for a pipe or a device too: it would
// wait for a writer that the reader of the document does not know of.
std::string read_regular_file(const std::string& path);

// Writes the whole file or nothing: to a temporary file beside it, flushed to the disk, then
// renamed over `path`, whose permissions it keeps. Of a link, the file that it leads to is written,
// there or not; a link to a descriptor (/dev/stdout), a device or a pipe is written to. Throws
// Error naming the path and the reason (no such folder, no permission, disk full); the old content,
// if any, is then untouched and the temporary file is gone. A kill leaves none behind either,
// except on file systems without O_TMPFILE (NFS).
void write_file_atomically(const std::string& path, std::string_view content);

// The path of the file that this makes or replaces: of a link, where it leads to. Throws Error for
// a link that cannot be followed.
std::string written_path(const std::string& path);

// Whether write_file_atomically() writes to what is there, which is no regular file: a device, a
// pipe, a descriptor.
bool is_special_file(const std::string& path);

// Throws Error at once if `path` could not be written, so that long work does not end in a
// refusal. Leaves nothing behind.
void check_writable(const std::string& path);

}  // namespace moesim
