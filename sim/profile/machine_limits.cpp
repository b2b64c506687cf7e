#include "sim/profile/machine_limits.hpp"

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
  const double peak = device.peak_bf16_flops * format_of(work.products).faster;
  const double read =
      work.weights * format_of(work.stored).bytes - static_cast<double>(device.l2_bytes.count);
  const double memory = device.hbm_bandwidth.bytes_per_second;
  const double least_us = 1e6 * std::max(peak > 0 ? work.flops / peak : 0.0,
                                         memory > 0 ? std::max(read, 0.0) / memory : 0.0);
  for (double* each : {&estimate.time_us, &estimate.time_us_p05, &estimate.time_us_p95}) {
    *each = std::max(*each, least_us);
  }
  return estimate;
}

}  // namespace moesim::profile
