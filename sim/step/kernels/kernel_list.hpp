#pragma once

#include <string>
#include <utility>

#include "sim/profile/batched_products.hpp"
#include "sim/step/kernels/kernels.hpp"

namespace moesim::step {

// Collects priced kernels; skips kernels without work.
class KernelPricer::List {
 public:
  List(const profile::Profile& profile, Pass pass) : profile_(profile), pass_(pass) {}

  // Forward y[m, n] = x[m, k] W, of m rows; backward by input [m, k] and by weight [n, k].
  void gemm(const std::string& label, const profile::BatchedProduct& product, double count = 1,
            KernelClass kernel_class = KernelClass::gemm) {
    const auto& [m, n, k, experts] = product;
    if (m == 0) return;
    if (pass_ == Pass::forward) {
      add(label, kernel_class, profile::batched_product(profile_, product), count);
      return;
    }
    add(label + " by input", kernel_class, profile::batched_product(profile_, {m, k, n, experts}),
        count);
    add(label + " by weight", kernel_class, profile::batched_weight_gradient(profile_, product),
        count);
  }
  void memory(const std::string& label, double bytes,
              profile::MemoryKernel kind = profile::MemoryKernel::streaming, double count = 1,
              KernelClass kernel_class = KernelClass::memory) {
    if (bytes > 0) add(label, kernel_class, profile_.memory(bytes, kind), count);
  }
  void add(const std::string& label, KernelClass kernel_class, const profile::Estimate& estimate,
           double count = 1) {
    kernels_.push_back({label, kernel_class, estimate, count});
  }
  // Forward and backward bytes of a memory-bound kernel.
  void memory_pass(const std::string& label, double forward, double backward,
                   profile::MemoryKernel kind = profile::MemoryKernel::streaming) {
    memory(label + (pass_ == Pass::forward ? "" : " backward"),
           pass_ == Pass::forward ? forward : backward, kind);
  }
  Kernels take() { return std::move(kernels_); }

 private:
  const profile::Profile& profile_;
  Pass pass_;
  Kernels kernels_;
};

}  // namespace moesim::step
