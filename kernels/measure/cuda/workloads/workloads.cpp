#include "kernels/measure/cuda/workloads/workloads.hpp"

#include <fmt/format.h>

#include <array>

#include "kernels/measure/suites/sustained.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

struct Entry {
  const char* op;
  std::unique_ptr<Workload> (*make)(Context&, const PointSpec&, std::uint64_t);
};

constexpr std::array workloads{Entry{"gemm", gemm_workload},
                               Entry{sustained_op, sustained_workload},
                               Entry{"memory", memory_workload},
                               Entry{"attention", attention_workload},
                               Entry{"attention-backward", attention_backward_workload},
                               Entry{"route", routing_workload},
                               Entry{"gate", routing_workload},
                               Entry{"choose", stage_workload},
                               Entry{"assign", stage_workload},
                               Entry{"router-backward", stage_workload},
                               Entry{"permute", row_workload},
                               Entry{"permute-backward", row_workload},
                               Entry{"combine", row_workload},
                               Entry{"combine-backward", row_workload},
                               Entry{"dispatch", dispatch_workload},
                               Entry{"expert-ffn", expert_workload},
                               Entry{"layer", layer_workload},
                               Entry{"overlap", overlap_workload},
                               Entry{"launch", launch_workload},
                               Entry{"host-copy", host_copy_workload},
                               Entry{"all-to-all", collective_workload},
                               Entry{"all-reduce", collective_workload},
                               Entry{"all-gather", collective_workload},
                               Entry{"reduce-scatter", collective_workload}};

}  // namespace

std::unique_ptr<Workload> make_workload(Context& context, const PointSpec& spec,
                                        std::uint64_t seed) {
  for (const Entry& entry : workloads) {
    if (spec.op == entry.op) return entry.make(context, spec, seed);
  }
  throw NotMeasurable(fmt::format("no kernel for {} in this build", spec.op));
}

}  // namespace moesim::kernels::measure::cuda
