#pragma once

#include <memory>
#include <string>

#include "kernels/measure/devices/device.hpp"
#include "kernels/measure/ranks/group.hpp"
#include "sim/base/error.hpp"

namespace moesim::kernels::measure {

// The GPUs that this process can reach.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual int gpus() const = 0;
  // What tells device `index` from all others, such as its UUID; "" if nothing does.
  virtual std::string identity(int) const { return ""; }
  // Device `index` as a member of the group: with more than one rank all ranks open theirs at the
  // same time, and hear what the others have. The device keeps a reference to the group.
  virtual std::unique_ptr<Device> open(int index, Group& group) = 0;
};

// The CUDA devices of this process. Throws Error with the exit code for missing hardware, in words
// that say what is missing and what to do: this build has no CUDA, no driver, a driver older than
// the runtime, no device.
std::unique_ptr<Machine> open_machine();

// Why there is no such device, and what to do; "" if there is one.
std::string machine_trouble();
// What open_machine() throws then.
Error no_machine(const std::string& trouble);

// The version of CUDA that this program was built with, such as "13.0"; "" without CUDA.
std::string cuda_of_build();

}  // namespace moesim::kernels::measure
