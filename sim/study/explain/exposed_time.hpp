#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "sim/engine/timeline.hpp"
#include "sim/study/explain/kernel_rules.hpp"

namespace moesim::study {

// One kernel of one GPU. Times in microseconds.
struct Bar {
  double start_us = 0;
  double end_us = 0;
  KernelClass kernel_class;
};

// The time of one GPU from `begin` to `end`, each moment counted once: to the kernel that computes
// (the first to start, where several do), else to the exchange that runs, else to nothing (idle).
// So exchanges count where they are exposed, and all sums to end - begin. In milliseconds.
struct ExposedTime {
  std::array<double, kernel_kind_count> kind_ms{};
  double exchange_ms = 0;  // of these, exchanges, which wait for other GPUs too
  double idle_ms = 0;
  double total_ms = 0;
};

// Parts of bars outside begin to end do not count.
ExposedTime exposed_time(std::vector<Bar> bars, double begin_us, double end_us);

// Exchanges of experts that take a tenth of their mean or more: rows, not counts or probabilities.
std::size_t large_exchanges(const std::vector<Bar>& bars);

// Kernel time of experts, in us, before the first exchange of experts, then from each one to the
// next. GPUs that exchange with each other have the same exchanges, so that equal positions are one
// layer's pass on all of them.
std::vector<double> expert_times(std::vector<Bar> bars);

// The GPU that the others of a step wait for, and how much shorter its step is than the longest.
struct CriticalGpu {
  std::size_t index = 0;
  double shorter_ms = 0;
};

// GPUs that wait for each other end a step together, so the longest step alone is chance: of those
// whose steps are within 1 % of the longest, the one with the least time in exchanges, of equal
// ones the first. Steps count without their exchanges between stages of a pipeline, which are waits
// too; where there are such stages, the longest step alone decides. `gpus` in the order of ranks,
// at least one.
CriticalGpu critical_gpu(const std::vector<ExposedTime>& gpus);

// The step of one GPU until that of the slowest ends.
ExposedTime extended(ExposedTime time, double more_ms);

// The bars of the GPUs of a simulated step, by rank; `events` are their events in the same order.
struct SimulatedGpu {
  std::vector<Bar> bars;
  std::vector<const engine::TimelineEvent*> events;
  double end_us = 0;
};
std::vector<SimulatedGpu> simulated_gpus(const engine::Timeline& timeline);

// The times of all GPUs of a simulated step, in the order of ranks. Bars say their parts.
std::vector<ExposedTime> exposed_times(const engine::Timeline& timeline);

// Those of the critical GPU, until the last one ends.
ExposedTime exposed_time(const engine::Timeline& timeline);

}  // namespace moesim::study
