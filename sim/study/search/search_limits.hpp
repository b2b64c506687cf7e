#pragma once

#include <cstddef>
#include <cstdint>

namespace moesim::study {

inline constexpr std::size_t most_best = 1000;                 // of a search, that it keeps
inline constexpr double least_memory_share = 0.01;             // of a GPU's
inline constexpr std::int64_t most_min_speed = 1'000'000'000;  // tokens per second and GPU

// Of TrainingSearch and PrefillSearch alike: throws UsageError, which names the option, unless
// 1 <= best <= 1000, 0.01 <= memory_share <= 1, 0 <= max_loss <= 1, 0 <= min_speed <= 1e9.
void check_limits(std::size_t best, double memory_share, double max_loss, double min_speed);

}  // namespace moesim::study
