#include "kernels/measure/devices/machine.hpp"

// The machine of a build without CUDA; cuda/ has the other one.
namespace moesim::kernels::measure {

std::unique_ptr<Machine> open_machine() { throw no_machine(machine_trouble()); }

std::string machine_trouble() {
  return "this build has no CUDA: build on a machine with the CUDA toolkit (nvcc), without "
         "-DMOESIM_GPU=off";
}

std::string cuda_of_build() { return ""; }

}  // namespace moesim::kernels::measure
