#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/study/explain/exposed_time.hpp"

namespace moesim::study {

// Kernels of one name: how often it ran in the step, and its time in sum, hidden or not.
struct KernelSum {
  std::string name;
  KernelKind kind = KernelKind::unknown;
  std::int64_t calls = 0;
  double sum_ms = 0;
};

// Its step of median length (the lower of two).
struct TracedGpu {
  std::string file;
  std::string device;  // pid of its kernels: a number, or what the trace has
  ExposedTime exposed;
  std::vector<double> expert_us;  // expert_times() of its step
};

// A step of one GPU as profiler traces show it.
struct TracedStep {
  std::string file;
  std::string device;  // pid of its kernels: a number, or what the trace has
  // The times of this GPU in its step of median length (the lower of two), until the slowest GPU
  // ends.
  ExposedTime exposed;
  std::vector<double> steps_ms;    // all steps of this GPU, in order
  bool has_marks = true;           // ProfilerStep#; without, all of the trace is one step
  std::vector<KernelSum> kernels;  // of that step, the longest sum first
  std::int64_t exchanges = 0;      // large_exchanges() of that step
  std::vector<double> expert_us;   // expert_times() of that step
  std::size_t gpus = 1;            // in all files; this one is critical_gpu()
  std::vector<TracedGpu> all;      // of all files, by device
};

// Kernels of traces of torch.profiler, one file per rank or one of several. A step goes from its
// first kernel to the first of the next ProfilerStep#, the last one to the end of its last kernel.
// A kernel belongs to the step in which it was launched (by its correlation with the host's
// launch), where that is not in the trace the step in which it starts. It counts to a part by the
// collective that it is, the innermost range that says one (gpu_user_annotation; of its launch:
// user_annotation, nn.Module of python_function), else its own name. The order of the files does
// not matter. Throws UsageError naming the file: no trace, without kernels, or given twice.
TracedStep read_traced_step(const std::vector<std::string>& files);

}  // namespace moesim::study
