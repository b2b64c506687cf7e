#include "kernels/measure/suites/memory.hpp"

namespace moesim::kernels::measure {

PointSpec memory_point(const char* kernel, std::int64_t rows, int arrays_read) {
  PointSpec spec;
  spec.op = "memory";
  const auto array = rows * memory_columns * 2;
  const std::int64_t bytes = array * (arrays_read + 1);
  spec.params = {{"kernel", kernel},
                 {"dtype", "bf16"},
                 {"columns", memory_columns},
                 {"rows", rows},
                 {"bytes", bytes}};
  spec.bytes = static_cast<double>(bytes);
  spec.held_bytes = spec.bytes + rotation_bytes;
  return spec;
}

namespace {

std::vector<PointSpec> memory_points(Ranks) {
  std::vector<PointSpec> points;
  // Arrays of 8 KiB to 1 GiB.
  for (std::int64_t rows = 1; rows <= std::int64_t{1} << 17; rows *= 2) {
    points.push_back(memory_point("streaming", rows, 1));
    points.push_back(memory_point("activation", rows, 2));
    points.push_back(memory_point("normalization", rows, 1));
  }
  return points;
}

}  // namespace

Suite memory_suite() {
  return {"memory",
          "copy, gated activation and RMSNorm, 16 KiB to 3 GiB moved",
          {"memory"},
          1,
          memory_points};
}

}  // namespace moesim::kernels::measure
