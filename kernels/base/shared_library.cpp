#include "kernels/base/shared_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <vector>

namespace moesim::kernels {
namespace {

// CUPTI's folder is on no search path of most installations.
const std::vector<std::string>& toolkit_folders() {
  static const std::vector<std::string> folders{
#ifdef MOESIM_CUDA_LIBRARY_FOLDER
      MOESIM_CUDA_LIBRARY_FOLDER,
#endif
      "/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64"};
  return folders;
}

}  // namespace

SharedLibrary open_shared_library(const std::string& name, const char* variable) {
  SharedLibrary library;
  const char* chosen = std::getenv(variable);
  const bool named = chosen != nullptr && *chosen != '\0';
  library.handle = ::dlopen(named ? chosen : name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library.handle != nullptr) return library;
  library.trouble = ::dlerror();
  if (named) {
    library.trouble += fmt::format(", which {} names", variable);
    return library;
  }
  for (const std::string& folder : toolkit_folders()) {
    library.handle = ::dlopen(fmt::format("{}/{}", folder, name).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle == nullptr) continue;
    library.trouble.clear();
    return library;
  }
  library.trouble += fmt::format("; {} may name the file", variable);
  return library;
}

std::vector<std::string> library_candidates(const std::string& name, const char* variable) {
  const char* chosen = std::getenv(variable);
  if (chosen != nullptr && *chosen != '\0') return {chosen};
  std::vector<std::string> files{name};
  for (const std::string& folder : toolkit_folders()) {
    files.push_back(fmt::format("{}/{}", folder, name));
  }
  return files;
}

SharedLibrary open_newest_library(const std::vector<std::string>& files,
                                  const std::function<long(const SharedLibrary&)>& version) {
  SharedLibrary newest;
  long most = 0;
  for (const std::string& file : files) {
    SharedLibrary library;
    library.handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle == nullptr) {
      newest.trouble += newest.trouble.empty() ? "" : "; ";
      newest.trouble += ::dlerror();
      continue;
    }
    // None is closed once it was called: the CUPTI of CUDA 13.0 and 13.1 leaves pointers into
    // itself behind (https://github.com/icl-utk-edu/papi/pull/594).
    const long found = version(library);
    if (newest.handle != nullptr && found <= most) continue;
    newest.handle = library.handle;
    most = found;
  }
  if (newest.handle != nullptr) newest.trouble.clear();
  return newest;
}

void* find_symbol(const SharedLibrary& library, const char* name) {
  return ::dlsym(library.handle, name);
}

}  // namespace moesim::kernels
