#pragma once

#include <string>
#include <vector>

#include "kernels/measure/devices/device.hpp"
#include "kernels/measure/sessions/trial.hpp"
#include "kernels/measure/suites/suites.hpp"

namespace moesim::kernels::measure {

// Rough rates by which a run's length is estimated before anything was measured.
struct Rates {
  double peak_flops = 900e12;
  double memory_bytes_per_second = 4e12;
  double link_bytes_per_second = 400e9;
  double l2_bytes = 60e6;
};

// What was asked for: empty means all.
struct Selection {
  std::vector<std::string> suites;
  // Points whose label ("gemm dtype=bf16 m=128 ...") contains every one of these words.
  std::vector<std::string> only;
  int gpus = 1;
  int nodes = 1;  // that the GPUs are on, equally many on each
};

struct Planned {
  std::string suite;
  PointSpec spec;
  double seconds = 0;  // estimated
};
struct Plan {
  std::vector<Planned> points;   // in the order they are measured: by suite, each shuffled
  std::vector<Missing> missing;  // suites that cannot be had with these GPUs
  double seconds() const;
};

// Throws UsageError for an unknown suite, or if nothing is left to measure.
Plan make_plan(const Selection& selection, std::uint64_t seed, const Rates& rates);

// How long one point takes: preparing, warming up, sampling, verifying.
double estimate_seconds(const PointSpec& spec, const Rates& rates, const TrialOptions& options);

}  // namespace moesim::kernels::measure
