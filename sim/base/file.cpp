#include "sim/base/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "sim/base/error.hpp"

namespace moesim {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;  // a second owner would close the file twice
  Descriptor& operator=(const Descriptor&) = delete;
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

// A device, a pipe or a terminal has no content to protect, and a rename would replace it.
bool is_special_file(const std::string& path) {
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

std::string temporary_name(const std::string& path) {
  return fmt::format("{}.{}.tmp", path, ::getpid());
}

void write_special(const std::string& path, std::string_view content) {
  const Descriptor out(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (out.get() < 0) fail_writing(path, errno);
  if (const int code = write_all(out.get(), content); code != 0) fail_writing(path, code);
}

}  // namespace

std::string read_file(const std::string& path) {
  const Descriptor in(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (in.get() < 0) {
    throw UsageError(fmt::format("{}: cannot read: {}", path, std::strerror(errno)));
  }
  std::string content;
  char buffer[1 << 16];
  while (true) {
    const ssize_t count = ::read(in.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw UsageError(fmt::format("{}: cannot read: {}", path, std::strerror(errno)));
    }
    if (count == 0) return content;
    content.append(buffer, static_cast<std::size_t>(count));
  }
}

void write_file_atomically(const std::string& path, std::string_view content) {
  if (is_special_file(path)) return write_special(path, content);
  const std::string temporary = temporary_name(path);
  int code = 0;
  {
    const Descriptor out(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (out.get() < 0) fail_writing(path, errno);
    code = write_all(out.get(), content);
    if (code == 0 && ::fsync(out.get()) != 0) code = errno;
  }
  if (code == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) code = errno;
  if (code == 0) return;
  ::unlink(temporary.c_str());
  fail_writing(path, code);
}

void check_writable(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) fail_writing(path, EISDIR);
  if (is_special_file(path)) return;
  const std::string temporary = temporary_name(path);
  const Descriptor out(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (out.get() < 0) fail_writing(path, errno);
  ::unlink(temporary.c_str());
}

}  // namespace moesim
