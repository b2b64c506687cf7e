#pragma once

namespace moesim::tool {

// Physical memory of this machine, in bytes.
double host_memory_bytes();

}  // namespace moesim::tool
