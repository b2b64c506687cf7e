#include "kernels/measure/devices/machine.hpp"
#include "sim/base/error.hpp"

// The machine of a build without CUDA; cuda/ has the other one.
namespace moesim::kernels::measure {

std::unique_ptr<Machine> open_machine() {
  throw Error(
      "this build has no CUDA, so there is nothing to measure with: build on a machine with the "
      "CUDA toolkit (nvcc), without -DMOESIM_GPU=off; --list and --dry-run work here, and the "
      "shipped profiles (moesim simulate --profile) need no GPU",
      ExitCode::missing_hardware);
}

std::string cuda_of_build() { return ""; }

}  // namespace moesim::kernels::measure
