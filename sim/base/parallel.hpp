#pragma once

#include <cstddef>
#include <functional>

namespace moesim {

// The cores that this process may use, at least 1.
int core_count();

// Calls work(index) for every index from 0 to count - 1, on up to `threads` threads, of which the
// caller is one; indices are handed out in ascending order. After an exception no further index is
// begun, and that of the smallest index is thrown again when all threads have ended: the same one
// for any number of threads. `threads` below 1 counts as 1.
void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t)>& work);

}  // namespace moesim
