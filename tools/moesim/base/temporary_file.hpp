#pragma once

#include <optional>
#include <string>

#include "tools/moesim/base/interrupt.hpp"

namespace moesim::tool {

// A file with this content that goes when it goes out of scope or a signal ends the process, for
// programs that read files alone. Throws Error where it cannot be made.
class TemporaryFile {
 public:
  // `ending`: of its name, such as ".png".
  explicit TemporaryFile(const std::string& content, const std::string& ending = "");
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;  // a second owner would remove the file early
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::optional<RemovedFile> removed_;  // by a signal
};

}  // namespace moesim::tool
