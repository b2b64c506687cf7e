#include "kernels/measure/devices/machine.hpp"

namespace moesim::kernels::measure {

Error no_machine(const std::string& trouble) {
  return Error("nothing to measure with: " + trouble +
                   "; --list and --dry-run work here, and the shipped profiles (moesim simulate "
                   "--profile) need no GPU",
               ExitCode::missing_hardware);
}

}  // namespace moesim::kernels::measure
