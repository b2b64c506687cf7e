#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

// Runs kernels written against kernels/base/device.cuh on the host: blocks one after another, the
// threads of a block as fibers that change places at barriers and warp operations. Finds what a
// GPU would answer with a hang or with garbage: threads that meet at different barriers or leave
// before one, writes past the shared memory, shared memory read before it is written (it starts
// poisoned), asynchronous copies used before they were waited for.
namespace moesim::kernels::simt {

struct LaunchShape {
  int blocks = 1;
  int threads = 32;  // per block, a multiple of 32
  std::size_t shared_bytes = 0;
};

// In which order blocks, and the threads of a block between two barriers, take their turns.
// Results that depend on it are a race.
enum class Turns { forward, backward, shuffled };

// A kernel broke a rule of the machine; says which block, thread and line.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Runs `kernel` once per thread. Throws Fault, or what the kernel threw. Not reentrant.
void launch(const LaunchShape& shape, const std::function<void()>& kernel,
            Turns turns = Turns::forward);

}  // namespace moesim::kernels::simt
