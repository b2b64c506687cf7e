#include "sim/base/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim {
namespace {

constexpr mode_t permissions = 0777;

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;  // a second owner would close the file twice
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  int get() const { return number_; }

 private:
  int number_;
};

[[noreturn]] void fail_writing(const std::string& path, int code) {
  const char* advice = code == ENOSPC   ? "; free some space, or choose another place"
                       : code == ENOENT ? "; create the folder first"
                       : code == EACCES || code == EROFS ? "; choose a place you may write to"
                                                         : "";
  throw Error(fmt::format("{}: cannot write: {}{}", path, std::strerror(code), advice));
}

[[noreturn]] void fail_reading(const std::string& path, const std::string& reason) {
  throw UnreadableFile(path, fmt::format("{}: cannot read: {}", path, reason));
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// What the process has open: /dev/fd/3. A rename would replace the link, and what a shell
// redirected to would get nothing.
bool is_descriptor(const std::string& path) {
  const std::string folder = folder_of(path);
  return folder == "/dev/fd" || (path.starts_with("/proc/") && folder.ends_with("/fd"));
}

// The path that links lead to, which need not exist; those of descriptors are not followed. Throws
// Error where the kernel does not follow them either: in a circle, or one that somebody else left
// in a folder for all (fs.protected_symlinks).
std::string end_of_links(std::string path) {
  constexpr int most_links = 40;  // as the kernel follows
  const std::string asked = path;
  for (int link = 0; link < most_links && !is_descriptor(path); ++link) {
    std::error_code none;
    const std::filesystem::path target = std::filesystem::read_symlink(path, none);
    if (none) return path;
    const Descriptor end(::open(path.c_str(), O_PATH | O_CLOEXEC));
    if (end.get() < 0 && errno != ENOENT) fail_writing(asked, errno);
    path = target.is_absolute() ? target.string() : folder_of(path) + "/" + target.string();
  }
  return path;
}

// The file that `path` stands for, and how messages name it.
struct Destination {
  explicit Destination(const std::string& asked)
      : path(end_of_links(asked)),
        name(path == asked ? asked : fmt::format("{} (a link to {})", asked, path)) {}

  std::string path;
  std::string name;
};

// A device, a pipe or a terminal has no content to protect, and a rename would replace it.
bool is_special(const std::string& path) {
  if (is_descriptor(path)) return true;
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

int write_all(int descriptor, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// A name beside `path` that nobody can foresee, and that is no longer than a name may be.
std::string random_name(const std::string& path) {
  unsigned long long bits = 0;
  if (::getrandom(&bits, sizeof bits, GRND_NONBLOCK) != sizeof bits) {
    bits = static_cast<unsigned long long>(::getpid());
  }
  const std::string own = fmt::format(".{:016x}.tmp", bits);
  const std::size_t kept = std::min(name_of(path).size(), std::size_t{NAME_MAX} - own.size());
  return fmt::format("{}{}{}", path.substr(0, path.size() - name_of(path).size()),
                     name_of(path).substr(0, kept), own);
}

// A new file that will become `path`. It has no name until it is complete, so that a kill leaves
// nothing behind; where the file system has no files without a name (NFS), one of its own, which
// was no file and no link before.
class TemporaryFile {
 public:
  enum class Kind { unnamed_if_possible, named };

  explicit TemporaryFile(const Destination& destination, Kind kind = Kind::unnamed_if_possible)
      : path_(destination.path), out_(open(kind)) {
    if (out_.get() < 0) fail_writing(destination.name, errno);
  }
  ~TemporaryFile() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;  // a second owner would remove the file early
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  int get() const { return out_.get(); }

  // Some file systems make files without a name and cannot name them.
  bool cannot_be_named() const { return cannot_be_named_; }

  // Takes the place of `path`; the error code, or 0.
  int replace() {
    constexpr int attempts = 16;
    const std::string opened = fmt::format("/proc/self/fd/{}", out_.get());
    // A file that does not exist yet gets its name at once: a kill leaves nothing else. One that is
    // replaced has another name for the moment between two calls.
    if (name_.empty() &&
        ::linkat(AT_FDCWD, opened.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      return 0;
    }
    for (int attempt = 0; name_.empty(); ++attempt) {
      const std::string name = random_name(path_);
      if (::linkat(AT_FDCWD, opened.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
        name_ = name;
      } else if (errno != EEXIST || attempt == attempts) {
        cannot_be_named_ = true;
        return errno;
      }
    }
    if (std::rename(name_.c_str(), path_.c_str()) != 0) return errno;
    name_.clear();
    return 0;
  }

 private:
  Descriptor open(Kind kind) {
    if (name_of(path_).size() > NAME_MAX) {  // the file without a name would not say so
      errno = ENAMETOOLONG;
      return Descriptor(-1);
    }
    if (kind == Kind::unnamed_if_possible && ::access("/proc/self/fd", X_OK) == 0) {
      const int unnamed = ::open(folder_of(path_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
      if (unnamed >= 0 || errno == EACCES || errno == ENOENT) return Descriptor(unnamed);
    }
    constexpr int attempts = 16;
    for (int attempt = 0; attempt < attempts; ++attempt) {
      const std::string name = random_name(path_);
      const int named =
          ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
      if (named >= 0) name_ = name;
      if (named >= 0 || errno != EEXIST) return Descriptor(named);
    }
    return Descriptor(-1);
  }

  std::string path_;
  std::string name_;  // "": it has none
  bool cannot_be_named_ = false;
  Descriptor out_;
};

// `content` on the disk, in the place and with the permissions of `path`; the error code, or 0.
int write_through(TemporaryFile& out, const std::string& path, std::string_view content) {
  struct stat old {};
  const bool replaces = ::stat(path.c_str(), &old) == 0;
  if (const int code = write_all(out.get(), content); code != 0) return code;
  if (replaces && ::fchmod(out.get(), old.st_mode & permissions) != 0) return errno;
  if (::fsync(out.get()) != 0) return errno;
  return out.replace();
}

void write_special(const Destination& destination, std::string_view content) {
  // Where a shell appends, behind what is there.
  const Descriptor out(::open(destination.path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (out.get() < 0) fail_writing(destination.name, errno);
  if (const int code = write_all(out.get(), content); code != 0) {
    fail_writing(destination.name, code);
  }
}

void refuse_folder(const Destination& destination) {
  struct stat info {};
  const bool is_there = ::stat(destination.path.c_str(), &info) == 0;
  if (is_there && S_ISDIR(info.st_mode)) fail_writing(destination.name, EISDIR);
}

// Where reading has to end, with what kind of file it is.
std::pair<std::uint64_t, const char*> limit_of(const struct stat& info, int descriptor) {
  if (S_ISREG(info.st_mode)) return {most_file_bytes, "a file"};
  if (S_ISCHR(info.st_mode) && ::isatty(descriptor) == 0) return {most_device_bytes, "a device"};
  return {most_stream_bytes, "a pipe"};
}

std::string read_open(const std::string& path, const Descriptor& in) {
  struct stat info {};
  if (::fstat(in.get(), &info) != 0) fail_reading(path, std::strerror(errno));
  const auto [most, kind] = limit_of(info, in.get());
  std::string content;
  if (S_ISREG(info.st_mode) && info.st_size > 0 &&
      static_cast<std::uint64_t>(info.st_size) <= most) {
    content.reserve(static_cast<std::size_t>(info.st_size));
  }
  char buffer[1 << 16];
  while (true) {
    const ssize_t count = ::read(in.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_reading(path, std::strerror(errno));
    if (count == 0) return content;
    if (content.size() + static_cast<std::size_t>(count) > most) {
      fail_reading(path, fmt::format("{} of more than {} MiB", kind, most >> 20));
    }
    content.append(buffer, static_cast<std::size_t>(count));
  }
}

}  // namespace

std::string read_file(const std::string& path) {
  const Descriptor in(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (in.get() < 0) fail_reading(path, std::strerror(errno));
  return read_open(path, in);
}

std::string read_regular_file(const std::string& path) {
  // Opening a pipe that nobody writes to would wait.
  const Descriptor in(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (in.get() < 0) fail_reading(path, std::strerror(errno));
  struct stat info {};
  if (::fstat(in.get(), &info) == 0 && !S_ISREG(info.st_mode)) {
    fail_reading(path, S_ISDIR(info.st_mode) ? std::strerror(EISDIR)
                                             : "a document names it, and it is a device or a "
                                               "pipe, not a file");
  }
  return read_open(path, in);
}

std::string written_path(const std::string& path) { return Destination(path).path; }

bool is_special_file(const std::string& path) { return is_special(Destination(path).path); }

void write_file_atomically(const std::string& path, std::string_view content) {
  const Destination destination(path);
  if (is_special(destination.path)) return write_special(destination, content);
  refuse_folder(destination);
  TemporaryFile out(destination);
  int code = write_through(out, destination.path, content);
  if (out.cannot_be_named()) {
    TemporaryFile named(destination, TemporaryFile::Kind::named);
    code = write_through(named, destination.path, content);
  }
  if (code != 0) fail_writing(destination.name, code);
  // So that the new name survives a power failure; some file systems cannot.
  const Descriptor folder(
      ::open(folder_of(destination.path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) static_cast<void>(::fsync(folder.get()));
}

void check_writable(const std::string& path) {
  const Destination destination(path);
  refuse_folder(destination);
  if (!is_special(destination.path)) const TemporaryFile probe(destination);
}

}  // namespace moesim
