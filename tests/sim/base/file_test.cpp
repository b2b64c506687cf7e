#include "sim/base/file.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "moesim-file-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;  // a copy would remove the folder twice
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::size_t entries() const {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(path_)) count += entry.exists() ? 1 : 0;
    return count;
  }

 private:
  fs::path path_;
};

// Files of this process end at `bytes`, as on a full disk, while this lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;  // restores the limit once
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

}  // namespace

TEST_CASE("a written file reads back, and replaces the old one") {
  const Folder folder;
  const std::string path = folder / "a.csv";
  write_file_atomically(path, "first");
  const std::string content = std::string(200'000, 'x') + '\0' + "end\n";
  write_file_atomically(path, content);
  CHECK(read_file(path) == content);
  CHECK(folder.entries() == 1);
}

TEST_CASE("a write that fails leaves the old file and nothing else") {
  const Folder folder;
  const std::string path = folder / "a.csv";
  write_file_atomically(path, "old");
  {
    const FileSizeLimit full(4096);
    CHECK_THROWS_WITH(write_file_atomically(path, std::string(100'000, 'x')),
                      ContainsSubstring(path + ": cannot write: File too large"));
  }
  CHECK(read_file(path) == "old");
  CHECK(folder.entries() == 1);
}

TEST_CASE("a full device is an error with advice") {
  if (!fs::exists("/dev/full")) MOESIM_SKIP("there is no /dev/full here");
  CHECK_THROWS_WITH(write_file_atomically("/dev/full", "text"),
                    ContainsSubstring("/dev/full: cannot write: No space left on device; free"));
}

TEST_CASE("a device is written in place, not replaced") {
  write_file_atomically("/dev/null", "text");
  check_writable("/dev/null");
  CHECK(fs::is_character_file("/dev/null"));
}

TEST_CASE("a place that cannot be written says so") {
  const Folder folder;
  const std::string absent = folder / "no/such/a.csv";
  CHECK_THROWS_WITH(write_file_atomically(absent, "x"),
                    ContainsSubstring(absent + ": cannot write: No such file or directory"));
  CHECK_THROWS_AS(check_writable(absent), Error);
  fs::create_directory(folder / "sub");
  CHECK_THROWS_WITH(write_file_atomically(folder / "sub", "x"),
                    ContainsSubstring("cannot write: Is a directory"));
  CHECK_THROWS_AS(check_writable(folder / "sub"), Error);
  CHECK(folder.entries() == 1);
}

TEST_CASE("a folder without permission is refused") {
  if (::geteuid() == 0) MOESIM_SKIP("the superuser may write everywhere");
  const Folder folder;
  fs::create_directory(folder / "sub");
  fs::permissions(folder / "sub", fs::perms::owner_read | fs::perms::owner_exec);
  CHECK_THROWS_WITH(check_writable(folder / "sub/a.csv"), ContainsSubstring("Permission denied"));
  CHECK_THROWS_WITH(write_file_atomically(folder / "sub/a.csv", "x"),
                    ContainsSubstring("Permission denied"));
}

TEST_CASE("checking a place leaves nothing behind and touches nothing") {
  const Folder folder;
  check_writable(folder / "new.csv");
  CHECK(folder.entries() == 0);
  write_file_atomically(folder / "old.csv", "old");
  check_writable(folder / "old.csv");
  CHECK(read_file(folder / "old.csv") == "old");
  CHECK(folder.entries() == 1);
}

TEST_CASE("a file that is replaced keeps its permissions") {
  const Folder folder;
  const std::string path = folder / "a.csv";
  write_file_atomically(path, "old");
  for (const auto permissions : {fs::perms(0600), fs::perms(0640), fs::perms(0444)}) {
    fs::permissions(path, permissions);
    write_file_atomically(path, "new");
    CHECK(fs::status(path).permissions() == permissions);
  }
  const mode_t before = ::umask(027);
  write_file_atomically(folder / "b.csv", "new");
  ::umask(before);
  CHECK(fs::status(folder / "b.csv").permissions() == fs::perms(0640));
}

TEST_CASE("of a link, the file that it leads to is written") {
  const Folder folder;
  fs::create_directory(folder / "far");
  write_file_atomically(folder / "far/a.csv", "old");
  fs::permissions(folder / "far/a.csv", fs::perms(0640));
  fs::create_symlink("far/a.csv", folder / "relative");
  fs::create_symlink(folder / "relative", folder / "chain");
  for (const std::string& link : {folder / "relative", folder / "chain"}) {
    check_writable(link);
    write_file_atomically(link, "rows of " + link);
    CHECK(fs::is_symlink(link));
    CHECK(read_file(folder / "far/a.csv") == "rows of " + link);
    CHECK(fs::status(folder / "far/a.csv").permissions() == fs::perms(0640));
  }
  CHECK(folder.entries() == 3);
  CHECK(std::distance(fs::directory_iterator(folder / "far"), fs::directory_iterator()) == 1);
}

TEST_CASE("a link and the file that it leads to are written at one path") {
  const Folder folder;
  fs::create_directory(folder / "far");
  fs::create_symlink("far/a.csv", folder / "link");
  CHECK(written_path(folder / "link") == folder / "far/a.csv");  // there or not
  write_file_atomically(folder / "link", "rows");
  CHECK(written_path(folder / "link") == folder / "far/a.csv");
  CHECK(written_path(folder / "far/a.csv") == folder / "far/a.csv");
  fs::create_symlink("circle", folder / "circle");
  CHECK_THROWS_AS(written_path(folder / "circle"), Error);
}

TEST_CASE("of a link to nothing, the file that it names is made") {
  const Folder folder;
  fs::create_directory(folder / "far");
  fs::create_symlink("far/a.csv", folder / "link");
  check_writable(folder / "link");
  CHECK_FALSE(fs::exists(folder / "far/a.csv"));
  write_file_atomically(folder / "link", "rows");
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(read_file(folder / "far/a.csv") == "rows");
}

TEST_CASE("a link that cannot be written through names both files") {
  const Folder folder;
  fs::create_symlink("no/such/a.csv", folder / "link");
  const std::string both =
      (folder / "link") + " (a link to " + (folder / "no/such/a.csv") + "): cannot write: No such";
  CHECK_THROWS_WITH(check_writable(folder / "link"), ContainsSubstring(both));
  CHECK_THROWS_WITH(write_file_atomically(folder / "link", "x"), ContainsSubstring(both));
  fs::create_symlink("circle", folder / "circle");
  CHECK_THROWS_WITH(write_file_atomically(folder / "circle", "x"),
                    ContainsSubstring((folder / "circle") + ": cannot write: Too many levels"));
  fs::create_directory(folder / "sub");
  fs::create_symlink("sub", folder / "to-folder");
  CHECK_THROWS_WITH(write_file_atomically(folder / "to-folder", "x"),
                    ContainsSubstring("cannot write: Is a directory"));
}

TEST_CASE("a link that somebody else left in a folder for all is not followed") {
  if (::geteuid() != 0) MOESIM_SKIP("only the superuser makes links of others");
  std::ifstream setting("/proc/sys/fs/protected_symlinks");
  int protects = 0;
  if (!(setting >> protects) || protects == 0) MOESIM_SKIP("this kernel follows such links");
  const Folder folder;
  fs::permissions(folder / ".", fs::perms(01777));
  write_file_atomically(folder / "victim", "precious");
  fs::create_symlink("victim", folder / "a.csv");
  constexpr uid_t other = 12345;
  REQUIRE(::lchown((folder / "a.csv").c_str(), other, other) == 0);
  CHECK_THROWS_WITH(write_file_atomically(folder / "a.csv", "rows"),
                    ContainsSubstring((folder / "a.csv") + ": cannot write: Permission denied"));
  CHECK(read_file(folder / "victim") == "precious");
}

TEST_CASE("reading ends where a device or a pipe does not") {
  CHECK_THROWS_WITH(read_file("/dev/zero"),
                    ContainsSubstring("/dev/zero: cannot read: a device of more than 1 MiB"));
  CHECK(read_file("/dev/null").empty());
  const Folder folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(read_regular_file(pipe), ContainsSubstring("not a file"));
  CHECK_THROWS_WITH(read_regular_file("/dev/zero"), ContainsSubstring("not a file"));
  CHECK_THROWS_WITH(read_regular_file(folder / "."), ContainsSubstring("Is a directory"));
  write_file_atomically(folder / "a", "text");
  CHECK(read_regular_file(folder / "a") == "text");
}

TEST_CASE("what cannot be read says why") {
  const Folder folder;
  CHECK_THROWS_WITH(read_file(folder / "absent"), ContainsSubstring("cannot read: No such file"));
  fs::create_directory(folder / "sub");
  CHECK_THROWS_WITH(read_file(folder / "sub"), ContainsSubstring("cannot read: Is a directory"));
}
