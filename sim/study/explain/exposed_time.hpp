#pragma once

#include <array>
#include <vector>

#include "sim/engine/timeline.hpp"
#include "sim/study/explain/kernel_rules.hpp"

namespace moesim::study {

// One kernel of one GPU. Times in microseconds.
struct Bar {
  double start_us = 0;
  double end_us = 0;
  Placement placement;
};

// The time of one GPU from `begin` to `end`, each moment counted once: to the kernel that computes
// (the first to start, where several do), else to the exchange that runs, else to nothing (idle).
// So exchanges count where they are exposed, and all sums to end - begin. In milliseconds.
struct ExposedTime {
  std::array<double, place_count> place_ms{};
  double idle_ms = 0;
  double total_ms = 0;
};

// Parts of bars outside begin to end do not count.
ExposedTime exposed_time(std::vector<Bar> bars, double begin_us, double end_us);

// Of the rank of a simulated step that ends last, whose bars say their parts.
ExposedTime exposed_time(const engine::Timeline& timeline);

}  // namespace moesim::study
