#include "sim/profile/missing_parameter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/shipped.hpp"

namespace moesim::profile {
namespace {

std::string missing(const std::string& name, const std::vector<std::string>& needed,
                    const std::string& other, const char* dashes) {
  return fmt::format("{0}{1} is missing; it needs {0}{2}{3}", dashes, name,
                     fmt::join(needed, fmt::format(", {}", dashes)), other);
}

// "takes no bytez; it takes gpus, bytes, nccl (did you mean 'bytes'?)".
std::string unknown(const std::string& name, const std::vector<std::string>& taken,
                    const std::string& why, const char* dashes) {
  return fmt::format("takes no {0}{1}{2}; it takes {0}{3}", dashes, name,
                     why.empty() ? suggestion(name, taken) : why,
                     fmt::join(taken, fmt::format(", {}", dashes)));
}

}  // namespace

MissingParameter::MissingParameter(const std::string& op, const std::string& name,
                                   const std::vector<std::string>& needed, const std::string& other)
    : WrongParameters(fmt::format("{}: {}", op, missing(name, needed, other, "")),
                      fmt::format("--op {}: {}", op, missing(name, needed, other, "--"))) {}

UnknownParameter::UnknownParameter(const std::string& op, const std::string& name,
                                   const std::vector<std::string>& taken, const std::string& why)
    : WrongParameters(fmt::format("{} {}", op, unknown(name, taken, why, "")),
                      fmt::format("--op {}: {}", op, unknown(name, taken, why, "--"))) {}

}  // namespace moesim::profile
