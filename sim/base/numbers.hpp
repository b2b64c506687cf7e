#pragma once

#include <cstddef>

namespace moesim {

// The place in a container of what is counted in int, from 0 on.
constexpr std::size_t index_of(int number) { return static_cast<std::size_t>(number); }

constexpr double square(double value) { return value * value; }

}  // namespace moesim
