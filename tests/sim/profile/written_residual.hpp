#pragma once

#include <string>

namespace moesim::profile {

// "NAME": {...}, as a curve's document has its errors: -BAR to +BAR of every size.
inline std::string written_residual(const std::string& name, const std::string& bar) {
  return "\"" + name +
         R"(": {"by": "bytes", "median_abs": 0, "p90_abs": 0, "method": "test", "regions": [
      {"region": "all", "from": 0, "below": null, "n": 1, "median_abs": 0, "p90_abs": 0,
       "q05": -)" +
         bar + R"(, "q95": )" + bar + "}]}";
}

}  // namespace moesim::profile
