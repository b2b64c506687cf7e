#pragma once

#include <cstddef>
#include <cstdint>

// The thread that a kernel runs as when it is compiled for the host. Declared here and implemented
// by whoever executes kernels there (tests/support/simt); nothing of it is in a CUDA build. Every
// collective carries its line in the kernel: threads that meet at different lines have diverged.
namespace moesim::kernels::simt {

struct Place {
  int thread = 0;
  int threads = 0;
  int block = 0;
  int blocks = 0;
  unsigned char* shared = nullptr;
};

const Place& place();

void block_barrier(int line);
// Threads [part * threads, + threads) of the block alone.
void part_barrier(int part, int threads, int line);

// Every lane of the warp deposits a value and gets the values of all 32, valid until the lane's
// next but one exchange.
const std::uint64_t* warp_exchange(std::uint64_t value, int line);

// 16 bytes from global to shared memory, which arrive no sooner than the wait for their group.
// `from` null: zeros.
void copy_async(void* to, const void* from);
void commit_copies();
void wait_for_copies(int groups_left);

}  // namespace moesim::kernels::simt
