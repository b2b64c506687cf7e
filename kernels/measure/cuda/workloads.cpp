#include "kernels/measure/cuda/workloads.hpp"

#include <bit>
#include <cmath>

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

double bf16_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

bool close(double got, double wanted, double slack) {
  return std::abs(got - wanted) <= std::abs(wanted) * 0x1p-7 + slack;
}

}  // namespace moesim::kernels::measure::cuda
