#pragma once

#include <ctime>
#include <string>

namespace moesim::testing {

// Now, as benchmarks date their documents: 2026-01-31T12:34:56Z.
inline std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace moesim::testing
