#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/measure/benchmarks/benchmark_report.hpp"
#include "kernels/measure/sessions/trial.hpp"

namespace moesim::kernels::measure {

// Measures `benchmarks` one after the other; one that does not fit or is wrong is a row with a
// trouble. `peers` of another device are refused with UsageError. Throws what a lost device throws.
BenchmarkReport run_benchmarks(Device& device, const std::vector<Benchmark>& benchmarks,
                               const PeerRun& peers, std::uint64_t seed,
                               const TrialOptions& options,
                               const std::function<void(const std::string&)>& on_benchmark = {});

}  // namespace moesim::kernels::measure
