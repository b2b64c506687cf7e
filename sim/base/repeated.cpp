#include "sim/base/repeated.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"

namespace moesim {

void refuse_repeated(const std::vector<std::string_view>& names, const std::string& where) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (std::find(names.begin(), name, *name) == name) continue;
    throw UsageError(fmt::format("{}: '{}' is named twice", where, *name));
  }
}

}  // namespace moesim
