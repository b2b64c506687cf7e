#pragma once

#include <optional>

#include "sim/study/explain/measured_trace.hpp"

namespace moesim::study {

// How uneven the experts of the GPUs of one exchange group are, layer by layer: the longest time
// over the mean of the GPUs, each layer with the weight of its time.
struct UnevenRouting {
  double expected = 1;
  double measured = 1;
  double more_wait_ms = 0;  // longest minus mean, summed over the layers: measured minus expected
  // By more than the simulated one is likely off.
  bool is_more_uneven() const;
  bool is_more_even() const;
};

// Of traces of all GPUs, or of as many as exchange rows with each other (`group_gpus`). The time of
// a GPU that is slower in all that it computes counts as if it were as fast as the others. None of
// fewer traces, and where the GPUs do not have the same exchanges.
std::optional<UnevenRouting> uneven_routing(const engine::Timeline& expected,
                                            const TracedStep& measured, std::size_t group_gpus);

}  // namespace moesim::study
