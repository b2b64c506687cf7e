#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace moesim::kernels {

// A library that is loaded when it is first needed, so that a program without it still starts.
struct SharedLibrary {
  void* handle = nullptr;
  std::string trouble;  // why it could not be loaded; "" if it could
};

// The file that the environment variable `variable` names, if it is set, and then no other; else
// `name` as the dynamic linker finds it, then in the folder of the toolkit of this build, and then
// in the usual folders of a CUDA toolkit.
SharedLibrary open_shared_library(const std::string& name, const char* variable);

// The files that open_shared_library() tries, in its order.
std::vector<std::string> library_candidates(const std::string& name, const char* variable);
// Opens the file for which `version` gives the largest number, of those that can be loaded; the
// earlier of equal ones. The others stay loaded, since they were called. Throws their troubles
// together if there is none.
SharedLibrary open_newest_library(const std::vector<std::string>& files,
                                  const std::function<long(const SharedLibrary&)>& version);

// The function `name` of the library, null if it has none. `Function` is a pointer to a function.
void* find_symbol(const SharedLibrary& library, const char* name);
template <typename Function>
Function find_function(const SharedLibrary& library, const char* name) {
  return reinterpret_cast<Function>(find_symbol(library, name));
}

// Finds the functions that a caller needs, and tells the first that is missing: "NCCL is too old:
// it has no ncclSend; install a newer libnccl2" of the words before and behind the name.
class NeededFunctions {
 public:
  // Writes to `trouble`, which must outlive it, unless something is there.
  NeededFunctions(const SharedLibrary& library, std::string& trouble, std::string before,
                  std::string behind = "")
      : library_(library),
        trouble_(trouble),
        before_(std::move(before)),
        behind_(std::move(behind)) {}

  // Null where the library has no such function.
  template <typename Function>
  void find(Function& function, const char* name) const {
    function = find_function<Function>(library_, name);
    if (function == nullptr && trouble_.empty()) trouble_ = before_ + name + behind_;
  }

 private:
  const SharedLibrary& library_;
  std::string& trouble_;
  std::string before_;
  std::string behind_;
};

}  // namespace moesim::kernels
