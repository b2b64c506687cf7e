#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/study/explain/computed_again.hpp"
#include "sim/study/explain/measured_trace.hpp"
#include "sim/study/explain/uneven_routing.hpp"
#include "sim/study/sweep/outcome.hpp"

namespace moesim::study {

// What was measured: a time, a trace, or both. Then the time is the step's and the trace says how
// it divides.
struct Measured {
  std::optional<double> step_ms;
  std::optional<TracedStep> trace;
  double ms() const { return step_ms ? *step_ms : trace->exposed.total_ms; }
  // The factor by which the trace's parts make up the step.
  double trace_scale() const { return ms() / trace->exposed.total_ms; }
};

// Exposed time of one part, or of several that the trace does not tell apart.
struct PartDifference {
  std::vector<StepPart> parts;  // none: idle
  double expected_ms = 0;
  double measured_ms = 0;
  // p05 and p95 of measured / expected that the curves' errors alone explain; both 1 for idle.
  double low = 1;
  double high = 1;
  // Of the difference, what forward kernels that run more often than simulated take; negative:
  // less often. The rest is of longer, or shorter, calls, and is held against the curves' errors.
  double more_calls_ms = 0;
  double difference_ms() const { return measured_ms - expected_ms; }
  double judged_ms() const { return expected_ms + more_calls_ms; }
  bool is_inside() const {
    return measured_ms >= low * judged_ms() && measured_ms <= high * judged_ms();
  }
};

// What may be the matter with a part that took longer, or shorter, and what narrows it.
struct Suspicion {
  // A slow GPU has the parts that it computes, with its factor and without; another part has what
  // is left if that GPU were as fast as the others, and forward passes ran as often as simulated.
  PartDifference difference;
  double share = 0;  // of the sum of all differences' sizes
  bool is_slow_gpu = false;
  bool is_computed_again = false;  // or not, though the options say so
  std::string suspect;
  std::string next;
  // The curve alone may be off by as much.
  bool is_within_error() const {
    return !is_slow_gpu && !is_computed_again && difference.is_inside();
  }
};

// A GPU whose kernels take longer than those of the other GPUs that traces were given of, beyond
// what the scenario says of its GPUs.
struct SlowTrace {
  std::string file;
  std::string device;
  double factor = 1;
  bool is_compared = false;  // the GPU of TracedStep
};

// A term of the step's band, and of how many of its standard deviations the whole difference would
// be if it alone were off. Plausible alone: up to normal_p95.
struct TermReach {
  uncertainty::Term term;
  double deviations = 0;
};

struct Explanation {
  double expected_ms = 0;  // simulated
  double measured_ms = 0;
  uncertainty::SimulatedBand band;
  std::vector<TermReach> terms;
  std::vector<PartDifference> parts;  // of a trace: sum to its step, and to the expected one
  // Of 1 % of the step or more: forward passes computed again, then the largest difference first.
  std::vector<Suspicion> suspicions;
  std::vector<SlowTrace> slow_gpus;  // the slowest first
  std::optional<ComputedAgain> computed_again;
  std::optional<UnevenRouting> routing;  // of traces of all GPUs that exchange rows
  double any_part_share = 0;             // of the measured step: kernels that could be of any part
  double unknown_share = 0;              // with names that no rule knows; counted to "other"
  double ratio() const { return measured_ms / expected_ms; }
  bool is_inside() const { return measured_ms >= band.p05_ms && measured_ms <= band.p95_ms; }
  bool is_inside_same() const {
    return measured_ms >= band.same_p05_ms && measured_ms <= band.same_p95_ms;
  }
};

// The share of a step from which on kernels that could be of any part make those parts one row.
inline constexpr double most_of_any_part = 0.01;

// `outcome` and `timeline` of evaluate(); the timeline is used only with a trace.
Explanation explain(const scenario::Scenario& scenario, const Outcome& outcome,
                    const engine::Timeline& timeline, const Measured& measured);

}  // namespace moesim::study
