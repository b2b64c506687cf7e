#include "kernels/measure/cuda/workloads/rotated_workload.hpp"

#include <bit>
#include <map>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/statistics.hpp"

namespace moesim::kernels::measure::cuda {

std::string RotatedWorkload::verify() {
  return translated([this] {
    poison();
    launch(0);
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
    return check();
  });
}

Run RotatedWorkload::cold() {
  return translated([this] {
    const std::size_t copy = next_copy();
    return context_.timer->cold([this, copy] { launch(copy); });
  });
}

double RotatedWorkload::hot(std::size_t calls) {
  return translated([this, calls] {
    return context_.timer->hot(calls, [this](std::size_t call) { launch(call % copies_); });
  });
}

std::optional<Activity> RotatedWorkload::trace() {
  CuptiTracer* const attached = context_.tracer();
  if (attached == nullptr) return std::nullopt;
  constexpr std::uint64_t calls = 5;
  return translated([this, attached]() -> std::optional<Activity> {
    CuptiTracer& tracer = *attached;
    tracer.start();
    for (std::uint64_t call = 1; call <= calls; ++call) {
      tracer.begin_range(call);
      launch(next_copy());
      tracer.end_range();
    }
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
    const std::map<std::uint64_t, Activity> each = join_activity(tracer.stop());
    if (each.size() != calls) throw Error("the tracer saw nothing of some calls");
    std::vector<double> busy, sum, span;
    for (const auto& [range, activity] : each) {
      busy.push_back(activity.busy_us);
      sum.push_back(activity.sum_us);
      span.push_back(activity.span_us);
    }
    return Activity{each.begin()->second.launches, median(busy), median(sum), median(span)};
  });
}

double bf16_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

}  // namespace moesim::kernels::measure::cuda
