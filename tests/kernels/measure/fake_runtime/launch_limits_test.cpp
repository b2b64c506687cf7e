#include "kernels/base/launch_limits.hpp"

#include "tests/support/catch.hpp"
#include "tests/support/fake_cuda/runtime.hpp"

namespace kernels = moesim::kernels;

TEST_CASE("a kernel that needs more shared memory than the GPU has is told from a failed device") {
  fake_runtime() = {};
  fake_runtime().attributes[cudaDevAttrMaxSharedMemoryPerBlockOptin] = 101376;  // sm_86: 99 KiB
  const int one = 0, other = 0;
  kernels::allow_shared_memory(&one, 101376);
  CHECK(fake_runtime().calls.size() == 1);
  kernels::allow_shared_memory(&one, 101376);  // allowed before
  CHECK(fake_runtime().calls.size() == 1);
  // Each time: a figure that was refused is not kept as allowed.
  for (int again = 0; again < 2; ++again) {
    try {
      kernels::allow_shared_memory(&other, 131072);
      FAIL("it was allowed");
    } catch (const kernels::CudaError& error) {
      CHECK(error.code() == cudaErrorNotSupported);
      CHECK_THAT(error.what(), ContainsSubstring("131072") && ContainsSubstring("101376"));
    }
  }
  CHECK(fake_runtime().calls.size() == 1);
}
