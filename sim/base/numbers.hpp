#pragma once

#include <cstddef>
#include <cstdint>

namespace moesim {

// The place in a container of what is counted in int, from 0 on.
constexpr std::size_t index_of(int number) { return static_cast<std::size_t>(number); }

// A count, for products with figures that are no whole numbers.
constexpr double real(std::int64_t count) { return static_cast<double>(count); }

constexpr double square(double value) { return value * value; }

}  // namespace moesim
