#pragma once

#include <cstdint>

// What the activation kernels read and write: device pointers, bf16, aligned to 16 bytes.
namespace moesim::kernels::experts {

// activated = silu(gate) up, where a row of `hidden` is [gate, up], `ffn` elements each.
struct SwigluArguments {
  std::int64_t rows = 0;
  int ffn = 0;                   // a multiple of 8
  const void* hidden = nullptr;  // [rows, 2 ffn]
  void* activated = nullptr;     // [rows, ffn]
};

struct SwigluBackwardArguments {
  std::int64_t rows = 0;
  int ffn = 0;
  const void* hidden = nullptr;    // [rows, 2 ffn]
  const void* gradient = nullptr;  // dL/dactivated [rows, ffn]
  void* hidden_gradient = nullptr;
};

}  // namespace moesim::kernels::experts
