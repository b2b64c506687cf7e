#pragma once

#include <cstdint>

// What permute and combine read and write: device pointers. Row buffers are [experts, block_rows,
// hidden]; IR rows [ir rows, hidden], one local expert's behind the other's.
namespace moesim::kernels::exchange {

// Where the rows of each token are (kernels/routing/arguments.hpp).
struct RouteMap {
  int tokens = 0;
  int experts = 0;
  int choices = 0;              // k'
  std::int32_t block_rows = 0;  // of an expert: its slots, C
  std::int64_t stride = 0;
  const std::uint16_t* expert = nullptr;    // [choice, token]
  const std::int32_t* slot = nullptr;       // [choice, token], negative: failed
  const std::int32_t* kept_rows = nullptr;  // [expert]; those behind are padding
  const std::int32_t* ir_row = nullptr;     // [token], -1: none; null without IR
};

// `row_vectors` is the size of a row in pieces of 16 bytes: all rows begin at multiples of them.
struct DispatchArguments {
  RouteMap map;
  int row_vectors = 0;
  const void* tokens = nullptr;  // [tokens, hidden]
  void* rows = nullptr;          // written whole: padding rows get zeros
  void* ir_rows = nullptr;
};

struct CombineArguments {
  RouteMap map;
  int row_vectors = 0;
  const float* weight = nullptr;     // [choice, token]; null: all 1
  const float* ir_weight = nullptr;  // [token]; null: all 1
  const void* rows = nullptr;
  const void* ir_rows = nullptr;
  const void* residual = nullptr;  // [tokens, hidden], added; null: none
  void* out = nullptr;             // [tokens, hidden]
};

struct CombineBackwardArguments {
  RouteMap map;
  int row_vectors = 0;
  const float* weight = nullptr;
  const float* ir_weight = nullptr;
  const void* rows = nullptr;  // what combine read
  const void* ir_rows = nullptr;
  const void* gradient = nullptr;  // dL/do [tokens, hidden]
  void* row_gradient = nullptr;    // written whole: padding rows get zeros
  void* ir_row_gradient = nullptr;
  float* upstream = nullptr;     // <dL/do, row> [choice, token], 0 where failed
  float* ir_upstream = nullptr;  // [token], 0 where there is no IR row
};

struct OneHotArguments {
  RouteMap map;
  const float* weight = nullptr;  // [choice, token]; null: all 1
  void* mask = nullptr;           // [tokens, experts * block_rows], written whole
};

// What a product left in the shape of a mask, where the mask has its ones.
struct MaskGradientArguments {
  RouteMap map;
  const void* mask = nullptr;  // [tokens, experts * block_rows]
  float* upstream = nullptr;   // [choice, token], 0 where failed
};

enum class ElementType { bfloat16, float32 };

}  // namespace moesim::kernels::exchange
