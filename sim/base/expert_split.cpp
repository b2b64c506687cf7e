#include "sim/base/expert_split.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "sim/base/error.hpp"

namespace moesim {

std::string divisors(std::int64_t number, std::int64_t at_most) {
  std::string text;
  for (std::int64_t size = 1; size <= std::min(number, at_most); ++size) {
    if (number % size == 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", size);
  }
  return text;
}

void check_experts_divide(std::int64_t experts, std::int64_t ranks, std::int64_t gpus) {
  if (ranks >= 1 && experts % ranks == 0) return;
  const std::string sizes = divisors(std::gcd(experts, gpus), gpus);
  throw UsageError(
      fmt::format("--expert-parallel: {} experts cannot be spread evenly over {} GPUs: use {}{}",
                  experts, ranks, sizes.find(',') == std::string::npos ? "" : "one of ", sizes));
}

}  // namespace moesim
