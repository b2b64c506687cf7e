#include "tools/moesim/base/temporary_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"

namespace moesim::tool {

TemporaryFile::TemporaryFile(const std::string& content, const std::string& ending) {
  std::error_code ignored;
  std::string name =
      (std::filesystem::temp_directory_path(ignored) / "moesim-plot-XXXXXX").string() + ending;
  const int descriptor = ::mkstemps(name.data(), static_cast<int>(ending.size()));
  if (descriptor < 0) throw Error(fmt::format("{}: cannot make a temporary file", name));
  ::close(descriptor);
  path_ = name;
  removed_.emplace(path_);
  write_file_atomically(path_, content);
}

TemporaryFile::~TemporaryFile() { ::unlink(path_.c_str()); }

}  // namespace moesim::tool
