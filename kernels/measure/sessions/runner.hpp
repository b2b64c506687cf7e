#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/measure/documents/raw_document.hpp"
#include "kernels/measure/sessions/plan.hpp"

namespace moesim::kernels::measure {

struct RunProgress {
  std::size_t done = 0;
  std::size_t total = 0;
  std::size_t resumed = 0;
  std::string label;  // of the point that comes next, "" at the end
  double seconds_left = 0;
};

struct RunOptions {
  std::uint64_t seed = 1;
  TrialOptions trial;
  double timeout_s = 0;  // no point is begun that would not end by then; 0: no limit
  const std::atomic<bool>* interrupted = nullptr;
  std::function<void(const RunProgress&)> on_progress;
  std::function<void(const std::string&)> on_phase;  // "gemm m=1 ...: warm-up"
  std::function<void(const std::string&)> on_note;   // void points, points that do not fit
};

enum class RunEnd { complete, timeout, interrupted, failed };

struct RunReport {
  RunEnd end = RunEnd::complete;
  std::size_t measured = 0;
  std::size_t resumed = 0;
  std::vector<std::string> voided;  // label and reason
  std::vector<Missing> missing;     // points that could not be measured, one entry per suite
};

// The phase in which other ranks wait while rank 0 measures alone.
constexpr const char* waiting_phase = "waiting for rank 0";

// Measures the plan's points. Rank 0 keeps the document (`raw` is null on the others) and decides
// which point comes next; the others take part in collectives only. Points that the document has
// are skipped. Throws what a failed device or a full disk throws; finished points are kept, and a
// point that took the device down is void.
RunReport run_plan(Device& device, Group& group, const Plan& plan, RawDocument* raw,
                   const RunOptions& options);

}  // namespace moesim::kernels::measure
