#include "tests/fuzz/input.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace moesim::fuzz {

namespace fs = std::filesystem;

Folder::Folder() {
  std::error_code ignored;
  const fs::path memory = "/dev/shm";
  const fs::path place = fs::is_directory(memory, ignored) ? memory : fs::temp_directory_path();
  std::string name = (place / "moesim-fuzz-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string Folder::put(const std::string& name, std::string_view content) const {
  const std::string path = (path_ / name).string();
  const int out = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool whole = out >= 0 && ::write(out, content.data(), content.size()) ==
                                     static_cast<ssize_t>(content.size());
  if (out >= 0) ::close(out);
  if (!whole) throw std::runtime_error("cannot write " + path);
  return path;
}

std::string_view take_part(std::string_view& rest) {
  constexpr std::string_view mark = "\n==\n";
  const std::size_t at = rest.find(mark);
  const std::string_view part = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + mark.size());
  return part;
}

}  // namespace moesim::fuzz
