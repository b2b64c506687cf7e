#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/study/explain/measured_trace.hpp"

namespace moesim::study {

// How often kernels of one part run in a step, simulated and measured. Of exchanges all large ones,
// of other parts the most frequent kernel whose name is that of a forward pass.
struct CallCounts {
  step::StepPart part = step::StepPart::attention;
  std::int64_t expected = 0;
  std::int64_t measured = 0;
};

// A step whose forward passes run more often, or less often, than simulated: activations that are
// recomputed and should not be, or the other way round.
struct ComputedAgain {
  bool is_more = true;
  bool is_whole = true;  // all that a layer does; else some parts, as attention alone
  bool is_every = true;  // in every layer
  std::array<double, kernel_kind_count> more_ms{};  // exposed time, by simulated times of the calls
  std::vector<CallCounts> calls;                    // of parts whose calls can be told, as evidence
  double total_ms() const;
};

// Forward over backward calls say it, as they do not depend on the number of layers, micro-batches
// and kernels: attention's, by names ("fwd", "fprop", "bwd", ..., or a name that is there with
// "_backward" too). Experts and other parts follow where their own names or the number of exchanges
// do not contradict. None in forward passes alone, and where names do not tell.
std::optional<ComputedAgain> computed_again(const engine::Timeline& expected,
                                            const TracedStep& measured);

// Forward over backward calls of attention in a trace: 2 where all of it is computed again. 0: its
// names do not tell.
double attention_passes(const TracedStep& measured);

}  // namespace moesim::study
