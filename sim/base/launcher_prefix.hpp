#pragma once

#include <string>
#include <string_view>

namespace moesim {

// A line of a log without what launchers put before those of each process: mpirun --tag-output
// ("[1,0]<stdout>:# ..."), srun --label ("0: # ...").
std::string without_launcher_prefix(std::string_view line);

}  // namespace moesim
