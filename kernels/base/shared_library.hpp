#pragma once

#include <string>

namespace moesim::kernels::measure::cuda {

// A library that is loaded when it is first wanted, so that a program without it still starts.
struct SharedLibrary {
  void* handle = nullptr;
  std::string trouble;  // why it could not be loaded; "" if it could
};

// The file that the environment variable `variable` names, if it is set, and then no other; else
// `name` as the dynamic linker finds it, and then in the usual folders of a CUDA toolkit.
SharedLibrary open_shared_library(const std::string& name, const char* variable);

}  // namespace moesim::kernels::measure::cuda
