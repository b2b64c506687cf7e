#include "kernels/measure/cuda/libraries/nvml.hpp"

#include <fmt/format.h>

#include <array>

#include "kernels/base/shared_library.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

// As nvml.h declares them; it is on few machines, and these have not changed since NVML 11.
using NvmlResult = int;  // 0: success
using NvmlDevice = struct nvmlDevice_st*;
struct Nvml {
  NvmlResult (*init)() = nullptr;
  NvmlResult (*driver_version)(char*, unsigned) = nullptr;
  NvmlResult (*device_by_uuid)(const char*, NvmlDevice*) = nullptr;
  NvmlResult (*power_limit)(NvmlDevice, unsigned*) = nullptr;                 // milliwatts
  NvmlResult (*power)(NvmlDevice, unsigned*) = nullptr;                       // milliwatts
  NvmlResult (*throttle_reasons)(NvmlDevice, unsigned long long*) = nullptr;  // bits
  NvmlResult (*ecc_mode)(NvmlDevice, int*, int*) = nullptr;                   // now, after a reset
  NvmlResult (*mig_mode)(NvmlDevice, unsigned*, unsigned*) = nullptr;         // now, after a reset
  std::string trouble;
};

Nvml load() {
  Nvml nvml;
  const SharedLibrary file = open_shared_library("libnvidia-ml.so.1", "MOESIM_NVML_LIBRARY");
  if (file.handle == nullptr) {
    nvml.trouble = fmt::format("NVML is missing ({})", file.trouble);
    return nvml;
  }
  const NeededFunctions needed(file, nvml.trouble, "NVML has no ");
  needed.find(nvml.init, "nvmlInit_v2");
  needed.find(nvml.driver_version, "nvmlSystemGetDriverVersion");
  needed.find(nvml.device_by_uuid, "nvmlDeviceGetHandleByUUID");
  needed.find(nvml.power_limit, "nvmlDeviceGetEnforcedPowerLimit");
  needed.find(nvml.power, "nvmlDeviceGetPowerUsage");
  needed.find(nvml.throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  needed.find(nvml.ecc_mode, "nvmlDeviceGetEccMode");
  needed.find(nvml.mig_mode, "nvmlDeviceGetMigMode");
  return nvml;
}

// nvmlClocksThrottleReason*; an idle GPU's is none.
struct Reason {
  unsigned long long bit;
  const char* name;
};
constexpr std::array reasons{Reason{0x002, "application clocks"},
                             Reason{0x004, "power limit"},
                             Reason{0x008, "hardware slowdown"},
                             Reason{0x010, "sync boost"},
                             Reason{0x020, "temperature, by software"},
                             Reason{0x040, "temperature, by hardware"},
                             Reason{0x080, "power brake"},
                             Reason{0x100, "display clocks"}};

void ask(const Nvml& nvml, NvmlDevice device, DeviceState& state) {
  unsigned milliwatts = 0;
  if (nvml.power_limit(device, &milliwatts) == 0) state.power_limit_w = 1e-3 * milliwatts;
  if (nvml.power(device, &milliwatts) == 0) state.power_w = 1e-3 * milliwatts;
  unsigned long long bits = 0;
  if (nvml.throttle_reasons(device, &bits) == 0) {
    for (const Reason& reason : reasons) {
      if ((bits & reason.bit) != 0) state.throttled_by.emplace_back(reason.name);
    }
  }
  int ecc = 0, ecc_later = 0;
  if (nvml.ecc_mode(device, &ecc, &ecc_later) == 0) state.ecc = ecc != 0;
  unsigned mig = 0, mig_later = 0;
  if (nvml.mig_mode(device, &mig, &mig_later) == 0) state.mig = mig != 0;
}

}  // namespace

DeviceState device_state(const std::string& uuid) {
  static const Nvml nvml = load();
  DeviceState state;
  state.trouble = nvml.trouble;
  if (!state.trouble.empty()) return state;
  // Once, and until the process ends: a start may take longer than what is asked about lasts.
  static const NvmlResult started = nvml.init();
  if (started != 0) {
    state.trouble = fmt::format("NVML does not start: error {}", started);
    return state;
  }
  std::array<char, 96> version{};
  if (nvml.driver_version(version.data(), version.size() - 1) == 0) state.driver = version.data();
  NvmlDevice device = nullptr;
  if (nvml.device_by_uuid(uuid.c_str(), &device) == 0) {
    ask(nvml, device, state);
  } else {
    state.trouble = fmt::format("NVML knows no {}", uuid);
  }
  return state;
}

}  // namespace moesim::kernels::measure::cuda
