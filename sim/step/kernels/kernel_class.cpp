#include "sim/step/kernels/kernel_class.hpp"

#include "sim/base/enum_names.hpp"

namespace moesim::step {
namespace {

constexpr EnumNames<KernelClass, kernel_class_count> class_names{{
    {KernelClass::gemm, "gemm"},
    {KernelClass::attention, "attention"},
    {KernelClass::memory, "memory"},
    {KernelClass::gating, "gating"},
    {KernelClass::einsum, "einsum"},
    {KernelClass::mask, "mask"},
    {KernelClass::exchange, "exchange"},
}};

}  // namespace

const char* name_of(KernelClass kernel_class) { return name_in(class_names, kernel_class); }

KernelClass parse_kernel_class(const std::string& name, const std::string& where) {
  return value_in(class_names, name, where);
}

}  // namespace moesim::step
