#include "tools/moesim/route/doubtful_logits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/moesim/base/output.hpp"

namespace moesim::tool {
namespace {

// Whether each token's values are those of a softmax: within 0..1 and adding up to 1.
bool are_probabilities(std::span<const float> values, std::size_t experts) {
  if (values.empty() || experts < 2) return false;
  for (std::size_t first = 0; first + experts <= values.size(); first += experts) {
    double sum = 0;
    for (const float value : values.subspan(first, experts)) {
      if (value < 0 || value > 1) return false;
      sum += value;
    }
    if (std::abs(sum - 1) > 0.01) return false;
  }
  return true;
}

// Whether all values are whole, none below 0 and some above 1, as of counts.
bool are_whole(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return value >= 0 && std::trunc(value) == value; }) &&
         std::any_of(values.begin(), values.end(), [](float value) { return value > 1; });
}

}  // namespace

void warn_of_logits(const std::string& name, std::span<const float> values, std::int64_t tokens,
                    std::int64_t experts) {
  constexpr std::int64_t most_experts_known = 1024;
  constexpr std::int64_t times = 16;  // so many experts for a token look like tokens
  if (experts > tokens &&
      (experts > most_experts_known || (tokens > 1 && experts > times * tokens))) {
    note(fmt::format(
        "warning: {}: {} experts for {} tokens: are the axes swapped? The last one is "
        "the expert; numpy.ascontiguousarray(array.swapaxes(-1, -2)) swaps the last two",
        name, experts, tokens));
  }
  if (are_whole(values)) {
    note(
        fmt::format("warning: {}: all values are whole numbers, as counts are, but taken for "
                    "logits, as floating-point numbers are: save counts as whole numbers (NumPy: "
                    "array.astype(int))",
                    name));
  }
  if (are_probabilities(values, static_cast<std::size_t>(experts))) {
    note(fmt::format(
        "warning: {}: each token's values add up to 1, as after a softmax; they are "
        "taken for logits, and a softmax follows, which makes all experts nearly alike: "
        "give the router's output before the softmax, or log(probabilities)",
        name));
  }
}

}  // namespace moesim::tool
