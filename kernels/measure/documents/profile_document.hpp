#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/measure/devices/device.hpp"
#include "kernels/measure/points/point.hpp"
#include "kernels/measure/suites/suites.hpp"

namespace moesim::kernels::measure {

// What a profile document says about the run that made it.
struct RunFacts {
  std::string name;  // of the profile: lower case, digits, dots, dashes
  std::string tool_version;
  std::string commit;  // "": not known
  std::uint64_t seed = 1;
  std::vector<std::string> arguments;
  DeviceFacts device;
  Versions versions;
  DeviceState state;  // at the end of the run
  std::string base;  // a shipped name or file: whose curves stand in for what was not measured; "":
                     // the shipped profile of the same device, else of the nearest one
};

// The complete profile: points, the curves fitted to them, the base's curves for the rest (as
// published if the base is the same device, else marked assumed), missing[]. The document is
// checked against the schema. Throws UsageError for a base that is none.
nlohmann::ordered_json profile_document(const RunFacts& facts, const std::vector<Point>& points,
                                        const std::vector<Missing>& missing);

// The shipped profile that stands in for what cannot be measured here.
std::string usual_base(const DeviceFacts& device);

// The environment variables that change what is measured, and only those: NCCL_* and CUDA_*.
nlohmann::ordered_json listed_environment(char** environment);

// "NVIDIA H200" as a profile's name: "nvidia-h200".
std::string as_name(const std::string& device);

}  // namespace moesim::kernels::measure
