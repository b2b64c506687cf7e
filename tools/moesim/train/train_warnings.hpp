#pragma once

#include <string>

#include "sim/training/step/training_step.hpp"

namespace moesim::tool {

// Whether a step waits for the host, by the time of this part, and what helps.
bool host_limits(double host, double step);
inline constexpr const char* host_remedy = "--cuda-graphs or a larger --micro-batch";

// What a step leaves of a GPU's memory, where libraries need some too (study::usual_memory_share).
enum class MemoryRoom { enough, tight, none };
MemoryRoom room_of(const training::TrainingJob& job, const training::TrainingStep& step);

// What tables, rows and charts warn of: "TIGHT, host limits"; "" where there is nothing. `host` as
// above.
inline constexpr const char* warnings_column = "warnings";
std::string warning_words(MemoryRoom room, double host, double step);

}  // namespace moesim::tool
