#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "sim/step/program/part.hpp"

namespace moesim::study {

// What a kernel of a measured trace counts to: one of the ten parts of a step, or, where its name
// does not say which, products or memory-bound kernels of any part; sends and receives between
// stages of a pipeline, which mostly wait; or nothing that is known.
enum class KernelKind {
  attention = static_cast<int>(step::StepPart::attention),
  dense_ffn = static_cast<int>(step::StepPart::dense_ffn),
  router = static_cast<int>(step::StepPart::router),
  dispatch_combine = static_cast<int>(step::StepPart::dispatch_combine),
  expert = static_cast<int>(step::StepPart::expert),
  rectify = static_cast<int>(step::StepPart::rectify),
  exposed_exchange = static_cast<int>(step::StepPart::exposed_exchange),
  gradient = static_cast<int>(step::StepPart::gradient),
  optimizer = static_cast<int>(step::StepPart::optimizer),
  other = static_cast<int>(step::StepPart::other),
  any_product = static_cast<int>(step::part_count),
  any_memory,
  pipeline,
  unknown
};
constexpr std::size_t kernel_kind_count = static_cast<std::size_t>(KernelKind::unknown) + 1;
constexpr KernelKind kind_of(step::StepPart part) { return static_cast<KernelKind>(part); }

struct KernelClass {
  KernelKind kind = KernelKind::unknown;
  bool is_exchange = false;  // communication: hidden where something computes
};

// A kernel as a trace names it. Empty: the trace does not say.
struct KernelName {
  std::string name;        // "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
  std::string collective;  // Kineto's "Collective name"
  std::string group;       // "Process Group Description"
};

// Classifies a kernel by the table of names in kernel_rules.cpp: the first that fits, exchanges
// first.
KernelClass classify_kernel(const KernelName& kernel);

// Classifies a kernel by the name of a range that encloses it, or its launch: a record_function, an
// nn.Module. KernelKind::unknown: the name says nothing.
KernelKind classify_range(std::string_view name);

}  // namespace moesim::study
