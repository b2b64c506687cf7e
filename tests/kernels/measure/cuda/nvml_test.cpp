// What NVML says of a GPU, by a stand-in for it.
#include "kernels/measure/cuda/libraries/nvml.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>

#include "tests/kernels/measure/cuda/in_process.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;

namespace {

std::string word(const std::optional<bool>& flag) { return !flag ? "?" : *flag ? "on" : "off"; }

std::string state_of(const std::string& uuid, const std::string& mode,
                     const std::string& file = MOESIM_FAKE_NVML) {
  return in_process("MOESIM_NVML_LIBRARY", file, [&] {
    ::setenv("FAKE_NVML", mode.c_str(), 1);
    const measure::DeviceState state = measure::cuda::device_state(uuid);
    return fmt::format("{} {} of {} W, {}, ECC {}, MIG {}; {}", state.driver, state.power_w,
                       state.power_limit_w, fmt::join(state.throttled_by, " + "), word(state.ecc),
                       word(state.mig), state.trouble);
  });
}

}  // namespace

TEST_CASE("NVML tells driver, power, what throttles, ECC and MIG") {
  CHECK(state_of("GPU-of-the-test", "") ==
        "580.65.06 121.5 of 650 W, power limit + temperature, by hardware, ECC on, MIG off; ");
  CHECK_THAT(state_of("GPU-of-the-test", "plain"), ContainsSubstring("ECC ?, MIG ?; "));
}

TEST_CASE("an NVML that is missing, does not start or does not know the GPU says so") {
  CHECK_THAT(state_of("GPU-x", "", "/no/such/libnvidia-ml.so"),
             ContainsSubstring("NVML is missing") && ContainsSubstring("MOESIM_NVML_LIBRARY"));
  // The first function of all.
  CHECK_THAT(state_of("GPU-x", "", MOESIM_FAKE_NCCL), ContainsSubstring("NVML has no nvmlInit_v2"));
  CHECK_THAT(state_of("GPU-x", "start"), ContainsSubstring("NVML does not start: error 9"));
  CHECK_THAT(state_of("GPU-x", ""),
             ContainsSubstring("580.65.06") && ContainsSubstring("NVML knows no GPU-x"));
}
