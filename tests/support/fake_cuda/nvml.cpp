// A libnvidia-ml.so.1 with one GPU, GPU-of-the-test; FAKE_NVML: "start" does not start, "plain" is
// a GPU without ECC and MIG.
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int not_supported = 3, not_found = 6, driver_not_loaded = 9;

bool told(const char* mode) {
  const char* text = std::getenv("FAKE_NVML");
  return text != nullptr && std::string(text) == mode;
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return told("start") ? driver_not_loaded : 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::strncpy(text, "580.65.06", size);
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  static int one;
  *device = &one;
  return std::string(uuid) == "GPU-of-the-test" ? 0 : not_found;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) {
  *milliwatts = 650000;
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 121500;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* bits) {
  *bits = 0x1 | 0x4 | 0x40;  // idle, the power limit, too hot
  return 0;
}
int nvmlDeviceGetEccMode(void*, int* now, int* later) {
  *now = 1;
  *later = 0;
  return told("plain") ? not_supported : 0;
}
int nvmlDeviceGetMigMode(void*, unsigned* now, unsigned* later) {
  *now = 0;
  *later = 1;
  return told("plain") ? not_supported : 0;
}
}
