#include "kernels/measure/suites/permute.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>

namespace moesim::kernels::measure {
namespace {

PointSpec row_point(const char* op, std::int64_t tokens, std::int64_t hidden, std::int64_t k,
                    std::int64_t experts) {
  PointSpec spec;
  spec.op = op;
  // At a capacity factor of k there are k slots for each token, padding included.
  const std::int64_t rows = experts * ((k * tokens + experts - 1) / experts);
  const std::int64_t bytes = 2 * hidden * (tokens + rows);
  spec.params = {{"dtype", "bf16"},
                 {"router", fmt::format("top{}", k)},
                 {"capacity_factor", std::to_string(k)},
                 {"tokens", tokens},
                 {"hidden", hidden},
                 {"experts", experts},
                 {"rows", rows},
                 {"bytes", bytes}};
  spec.bytes = static_cast<double>(bytes);
  spec.held_bytes = spec.bytes + rotation_bytes;
  return spec;
}

std::vector<PointSpec> row_points(Ranks) {
  struct Width {
    std::int64_t hidden, k, experts;
  };
  constexpr std::array widths{Width{4096, 1, 8}, Width{4096, 2, 8}, Width{4096, 2, 64},
                              Width{2048, 8, 64}, Width{7168, 8, 256}};
  std::vector<PointSpec> points;
  for (const std::int64_t tokens : {256, 1024, 4096, 8192, 16384}) {
    for (const Width& width : widths) {
      for (const char* op : {"permute", "combine"}) {
        points.push_back(row_point(op, tokens, width.hidden, width.k, width.experts));
      }
    }
  }
  return points;
}

}  // namespace

Suite permute_suite() {
  return {"permute",
          "permute and combine of this project: rows of tokens into experts' slots and back",
          {"permute", "combine"},
          1,
          row_points};
}

}  // namespace moesim::kernels::measure
