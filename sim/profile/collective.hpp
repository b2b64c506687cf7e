#pragma once

#include <string>

namespace moesim::profile {

enum class Collective { all_to_all, all_reduce, all_gather, reduce_scatter };

// "all-to-all", "all-reduce", "all-gather", "reduce-scatter".
const char* name_of(Collective kind);

}  // namespace moesim::profile
