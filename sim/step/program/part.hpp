#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace moesim::step {

// The ten parts of a step, in the order of the result columns. Every operation counts to one.
enum class StepPart {
  attention,
  dense_ffn,
  router,
  dispatch_combine,
  expert,
  rectify,
  exposed_exchange,
  gradient,
  optimizer,
  other
};
constexpr std::size_t part_count = 10;

// "attention", "dense_ffn", ...: the result columns without their "_ms".
const std::vector<std::string>& part_names();

}  // namespace moesim::step
