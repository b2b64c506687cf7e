#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/measure/benchmarks/benchmark_report.hpp"
#include "kernels/measure/sessions/trial.hpp"

namespace moesim::kernels::measure {

struct BenchmarkOptions {
  TrialOptions trial;
  double timeout_s = 0;  // no benchmark is begun after so long; 0: no limit
  std::string date;      // of the report
  std::function<void(const std::string&)> on_benchmark;  // its id, before it begins
  std::function<void(const BenchmarkReport&)> on_row;    // the rows so far, after each
};

// Measures `benchmarks` one after the other; one that does not fit, is wrong or late is a row with
// a trouble. `peers` of another device are refused with UsageError. Throws what a lost device
// throws.
BenchmarkReport run_benchmarks(Device& device, const std::vector<Benchmark>& benchmarks,
                               const PeerRun& peers, std::uint64_t seed,
                               const BenchmarkOptions& options = {});

}  // namespace moesim::kernels::measure
