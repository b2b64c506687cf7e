#pragma once

// Catch2 2.13 (Debian 12) and 3.x (newer) behind one include.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
#define MOESIM_SKIP(reason) SKIP("SKIPPED: " << (reason))
#else
#include <catch2/catch.hpp>
// Catch2 3 renamed it; Contains is about ranges there.
inline auto ContainsSubstring(const std::string& part) { return Catch::Matchers::Contains(part); }
// ctest reads the line and counts the case as skipped.
#define MOESIM_SKIP(reason)        \
  do {                             \
    WARN("SKIPPED: " << (reason)); \
    return;                        \
  } while (false)
#endif
