#include "sim/profile/missing_parameter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace moesim::profile {
namespace {

std::string text_of(const std::string& name, const std::vector<std::string>& needed,
                    const std::string& other, const char* dashes) {
  return fmt::format("{0}{1} is missing; it needs {0}{2}{3}", dashes, name,
                     fmt::join(needed, fmt::format(", {}", dashes)), other);
}

}  // namespace

MissingParameter::MissingParameter(std::string op, std::string name,
                                   std::vector<std::string> needed, std::string other)
    : UsageError(fmt::format("{}: {}", op, text_of(name, needed, other, ""))),
      op_(std::move(op)),
      name_(std::move(name)),
      needed_(std::move(needed)),
      other_(std::move(other)) {}

std::string MissingParameter::of_options() const {
  return fmt::format("--op {}: {}", op_, text_of(name_, needed_, other_, "--"));
}

}  // namespace moesim::profile
