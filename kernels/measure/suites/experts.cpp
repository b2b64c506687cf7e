#include "kernels/measure/suites/experts.hpp"

#include <array>

#include "kernels/measure/suites/collectives.hpp"
#include "sim/base/units.hpp"

namespace moesim::kernels::measure {

std::vector<std::int64_t> ragged_rows(int experts, std::int64_t rows) {
  std::vector<std::int64_t> each = uneven_row(experts, experts - 1, 16 * rows);
  for (std::int64_t& count : each) count /= 16;
  return each;
}

namespace {

PointSpec expert_point(const char* layout, const char* pass, std::int64_t rows, std::int64_t hidden,
                       std::int64_t ffn, std::int64_t experts) {
  PointSpec spec;
  spec.op = "expert-ffn";
  spec.params = {{"dtype", "bf16"},  {"layout", layout}, {"pass", pass},      {"rows", rows},
                 {"hidden", hidden}, {"ffn", ffn},       {"experts", experts}};
  const bool backward = spec.params["pass"] == "backward";
  const auto weights = static_cast<double>(3 * experts * hidden * ffn);
  const auto activations = static_cast<double>(rows * (2 * hidden + 3 * ffn));
  spec.flops = (backward ? 12 : 6) * static_cast<double>(rows * hidden * ffn);
  spec.bytes = bf16_bytes * (backward ? 2 : 1) * (weights + activations);
  spec.held_bytes = bf16_bytes * 2 * (weights + activations);
  return spec;
}

// The experts of one GPU in shipped models, expert-parallel over a node.
std::vector<PointSpec> expert_points(Ranks) {
  struct Width {
    std::int64_t hidden, ffn, experts;
  };
  constexpr std::array widths{Width{4096, 11008, 1}, Width{4096, 14336, 1}, Width{2048, 1024, 8},
                              Width{2048, 768, 16}, Width{7168, 2048, 32}};
  std::vector<PointSpec> points;
  for (const std::int64_t each : {16, 64, 256, 1024, 4096}) {
    for (const auto& [hidden, ffn, experts] : widths) {
      if (each * experts > 32768) continue;
      const std::int64_t rows = each * experts;
      for (const char* pass : {"forward", "backward"}) {
        points.push_back(expert_point("padded", pass, rows, hidden, ffn, experts));
      }
      if (experts > 1)
        points.push_back(expert_point("ragged", "forward", rows, hidden, ffn, experts));
    }
  }
  return points;
}

}  // namespace

Suite experts_suite() {
  return {"experts",
          "SwiGLU FFNs of a GPU's experts: equal rows in one call, uneven ones in a call each",
          {},
          1,
          expert_points};
}

}  // namespace moesim::kernels::measure
