#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define MOESIM_HAVE_NVTX 1
#endif

namespace moesim::kernels {

// A named range of this thread that profilers show: what is launched while it lives belongs to it.
// A few nanoseconds where no tool listens, nothing in a build without NVTX.
class NvtxRange {
 public:
  explicit NvtxRange([[maybe_unused]] const char* name) {
#ifdef MOESIM_HAVE_NVTX
    nvtxRangePushA(name);
#endif
  }
  ~NvtxRange() {
#ifdef MOESIM_HAVE_NVTX
    nvtxRangePop();
#endif
  }
  NvtxRange(const NvtxRange&) = delete;  // ranges nest by scope
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace moesim::kernels
