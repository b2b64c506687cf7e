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

void* find_symbol(const SharedLibrary& library, const char* name) {
  return ::dlsym(library.handle, name);
}

}  // namespace moesim::kernels
