#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/study/sweep/sweep.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/output.hpp"

namespace moesim::tool {

// A sweep as it was asked for, with all of its points planned.
struct SweepRequest {
  const CommandLine& line;
  report::Format format;
  std::vector<study::SweepPoint> points;
  std::string baseline;  // as it was typed; "": none
  Output out;
  study::SweepSettings settings;
  std::size_t total = 0;  // rows: points that repeat no other
};

// Plans the sweep, and says on stderr what the options that were typed leave open or without use.
// Throws UsageError for options that make no sense, Error for documents that cannot be read.
SweepRequest sweep_request(const CommandLine& line);

bool exists(const std::string& path);  // false for ""

}  // namespace moesim::tool
