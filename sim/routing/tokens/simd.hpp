#pragma once

#include <string>
#include <vector>

namespace moesim::routing {

// The instruction sets that the kernels of this room are compiled for; all give the same bits.
enum class SimdLevel { baseline, avx2, avx512 };

// The best level that this CPU and this build have.
SimdLevel best_simd_level();
// All levels that can run here, the baseline first.
std::vector<SimdLevel> available_simd_levels();
std::string name_of(SimdLevel level);

}  // namespace moesim::routing
