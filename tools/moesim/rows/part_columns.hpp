#pragma once

#include <string>
#include <vector>

namespace moesim::tool {

// "bubble and p2p": bubble_and_p2p_ms.
std::string part_column(const std::string& part);

// The columns of the parts of a training step, which sum to it; that of reruns only with a rank
// capacity, of offloading only with it.
std::vector<std::string> training_part_columns();

}  // namespace moesim::tool
