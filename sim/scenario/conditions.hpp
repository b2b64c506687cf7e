#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/engine/contended.hpp"
#include "sim/engine/program.hpp"

namespace moesim::scenario {

// One GPU and how many times longer something takes on it.
struct GpuFactor {
  int gpu = 0;
  double factor = 1;
  bool operator==(const GpuFactor&) const = default;
};
using GpuFactors = std::vector<GpuFactor>;

// What disturbs the GPUs of a job. By default nothing does: kernels take equally long on all.
struct Conditions {
  GpuFactors slow_gpus;   // all compute of these takes `factor` times as long
  GpuFactors slow_links;  // the ports of these (NVLink and NIC) have 1 / factor of their bandwidth
  double jitter = 0;      // sigma of a log-normal factor, drawn per operation, GPU and replica
  engine::Slowdowns slowdowns;  // of what runs at the same time on one GPU
};

// "3:1.5+7:2", empty for none: as the options and columns have it.
std::string text_of(const GpuFactors& factors);
std::string text_of(const engine::Slowdowns& slowdowns);  // "1.1:1.2"

// The same read; throws UsageError. Factors are at least 1, each GPU has one.
GpuFactors parse_gpu_factors(const std::string& text, const std::string& flag);
engine::Slowdowns parse_slowdowns(const std::string& text, const std::string& flag);

// Applies slow GPUs and jitter to compute, slow links to the collectives of the groups that have
// such a GPU: the slowest port sets the pace of all, but for their latency, of which `latency`
// [operation][group] has the share in an operation's time (one number: of all groups; empty: none).
// The jitter of a (replica, GPU, operation) depends on `seed` and on nothing else, and its median
// is 1.
void disturb(const Conditions& conditions, const engine::Program& program, std::uint64_t seed,
             int replica, engine::Durations& durations,
             std::span<const std::vector<double>> latency = {});

}  // namespace moesim::scenario
