#include "sim/base/enum_names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"

namespace moesim {

void refuse_name(const std::string& where, std::string_view text,
                 const std::vector<std::string>& names) {
  throw UsageError(fmt::format("{}: unknown value '{}'{}; choose from {}", where, text,
                               suggestion(std::string(text), names), fmt::join(names, ", ")));
}

}  // namespace moesim
