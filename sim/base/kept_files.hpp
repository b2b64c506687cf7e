#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <string>

namespace moesim {

// What was made of files, by the file: each once, kept as long as this is there. Another file of
// the same name in another folder is another one; a file that changes is not read again. Safe to
// use from threads.
template <class Value>
class KeptFiles {
 public:
  // `make()`: of the file, if it was not asked for before. What it throws is passed on, and the
  // next call makes it anew. `file`: a path, of the current folder if it is relative.
  template <class Make>
  const Value& get(const std::string& file, Make make) {
    const std::string key = std::filesystem::absolute(file).string();
    const std::lock_guard lock(mutex_);
    const auto found = kept_.find(key);
    return found != kept_.end() ? found->second : kept_.emplace(key, make()).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Value> kept_;  // whose nodes stay where they are
};

}  // namespace moesim
