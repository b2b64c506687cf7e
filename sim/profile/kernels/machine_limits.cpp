#include "sim/profile/kernels/machine_limits.hpp"

#include <algorithm>

namespace moesim::profile {
namespace {

// Bits decide: fp8 and fp8_block 8, nvfp4 and mxfp4 4, bf16 16.
struct Format {
  double bytes;
  double faster;  // than bf16, at most
};

Format format_of(const std::string& dtype) {
  if (dtype.find("fp4") != std::string::npos) return {0.5, 6};
  return dtype.starts_with("fp8") ? Format{1, 2} : Format{2, 1};
}

}  // namespace

Estimate no_faster_than_machine(Estimate estimate, const LeastWork& work, const Device& device) {
  const Format format = format_of(work.dtype);
  const double peak = device.peak_bf16_flops * format.faster;
  const double memory = device.hbm_bandwidth.bytes_per_second;
  const double read = work.weights * format.bytes - static_cast<double>(device.l2_bytes.count);
  const double least_us = 1e6 * std::max(peak > 0 ? work.flops / peak : 0.0,
                                         memory > 0 ? std::max(read, 0.0) / memory : 0.0);
  if (estimate.time_us < least_us) {
    estimate.time_us_p95 *= least_us / estimate.time_us;
    estimate.time_us = least_us;
  }
  estimate.time_us_p05 = std::max(estimate.time_us_p05, least_us);
  return estimate;
}

}  // namespace moesim::profile
