#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/study/explain/measured_trace.hpp"
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
  std::vector<Part> parts;  // none: idle
  double expected_ms = 0;
  double measured_ms = 0;
  // p05 and p95 of measured / expected that the curves' errors alone explain; both 1 for idle.
  double low = 1;
  double high = 1;
  double difference_ms() const { return measured_ms - expected_ms; }
  bool is_inside() const {
    return measured_ms >= low * expected_ms && measured_ms <= high * expected_ms;
  }
};

// What may be the matter with a part that took longer, or shorter, and what narrows it.
struct Suspicion {
  // A slow GPU has the parts that it computes, with its factor and without; another part has what
  // is left if that GPU were as fast as the others.
  PartDifference difference;
  double share = 0;  // of the sum of all differences' sizes
  bool is_slow_gpu = false;
  std::string suspect;
  std::string next;
  // The curve alone may be off by as much.
  bool is_within_error() const { return !is_slow_gpu && difference.is_inside(); }
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
// be if it alone were off. Plausible alone: up to 1.645.
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
  std::vector<Suspicion> suspicions;  // of 1 % of the step or more, the largest difference first
  std::vector<SlowTrace> slow_gpus;   // the slowest first
  double unplaced_share = 0;          // of the measured step: kernels that could be of any part
  double unknown_share = 0;           // with names that no rule knows; counted to "other"
  double ratio() const { return measured_ms / expected_ms; }
  bool is_inside() const { return measured_ms >= band.p05_ms && measured_ms <= band.p95_ms; }
  bool is_inside_same() const {
    return measured_ms >= band.same_p05_ms && measured_ms <= band.same_p95_ms;
  }
};

// The share of a step from which on kernels that could be of any part make those parts one row.
inline constexpr double most_unplaced = 0.01;

// `outcome` and `timeline` of evaluate(); the timeline is used only with a trace.
Explanation explain(const scenario::Scenario& scenario, const Outcome& outcome,
                    const engine::Timeline& timeline, const Measured& measured);

}  // namespace moesim::study
