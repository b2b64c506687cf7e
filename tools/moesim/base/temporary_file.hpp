#pragma once

#include <string>

namespace moesim::tool {

// A file with this content that goes when it goes out of scope, for programs that read files alone.
// Throws Error where it cannot be made.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;  // a second owner would remove the file early
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace moesim::tool
