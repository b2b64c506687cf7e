#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace moesim::step {

// What a kernel is limited by. Calibration multiplies by class.
enum class KernelClass { gemm, attention, memory, gating, einsum, mask, exchange };
constexpr std::size_t kernel_class_count = 7;
const char* name_of(KernelClass kernel_class);
// Throws a UsageError that names `where` and lists the classes.
KernelClass parse_kernel_class(const std::string& name, const std::string& where);

// Multipliers on the profile's predictions, for software that is slower than the kernels the
// profile was measured with. All 1 unless a study fits them.
struct Calibration {
  std::vector<double> multiplier = std::vector<double>(kernel_class_count, 1.0);
  double of(KernelClass kernel) const { return multiplier[static_cast<std::size_t>(kernel)]; }
};

}  // namespace moesim::step
