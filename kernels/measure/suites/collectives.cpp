#include "kernels/measure/suites/collectives.hpp"

#include <algorithm>
#include <cmath>

namespace moesim::kernels::measure {

PointSpec exchange_point(const char* op, const char* pattern, int gpus, std::int64_t bytes) {
  PointSpec spec;
  spec.op = op;
  spec.params = {{"gpus", gpus}, {"pattern", pattern}, {"dtype", "bf16"}, {"bytes", bytes}};
  spec.collective = true;
  spec.calls = calls_per_sample(bytes);
  spec.sent_bytes = static_cast<double>(bytes) * (gpus - 1) / gpus;
  if (spec.op == "all-reduce") spec.sent_bytes *= 2;
  spec.bytes = 2 * static_cast<double>(bytes);
  spec.held_bytes = 2 * static_cast<double>(bytes);
  return spec;
}

std::size_t calls_per_sample(std::int64_t bytes) {
  return bytes <= std::int64_t{1} << 20 ? 100 : 20;
}

std::vector<std::int64_t> uneven_row(int gpus, int from, std::int64_t bytes) {
  double total = 0;
  for (int place = 0; place < gpus; ++place) total += 1.0 / (1 + place);
  std::vector<std::int64_t> row(static_cast<std::size_t>(gpus));
  std::int64_t left = bytes / 16;
  for (int place = gpus - 1; place >= 0; --place) {
    const double share = 1.0 / (1 + place) / total;
    const auto wanted =
        std::max<std::int64_t>(1, std::llround(share * static_cast<double>(bytes) / 16));
    const std::int64_t steps = place == 0 ? left : std::min(wanted, left - place);
    row[static_cast<std::size_t>((from + 1 + place) % gpus)] = 16 * steps;
    left -= steps;
  }
  return row;
}

std::vector<Slice> checked_slices(std::size_t elements) {
  constexpr std::size_t slices = 64, count = std::size_t{1} << 19;
  if (elements <= slices * count) return {{0, elements}};
  std::vector<Slice> chosen;
  for (std::size_t slice = 0; slice < slices; ++slice) {
    chosen.push_back({(elements - count) / (slices - 1) * slice, count});
  }
  chosen.back().first = elements - count;
  return chosen;
}

namespace {

std::vector<PointSpec> collective_points(Ranks ranks) {
  std::vector<PointSpec> points;
  if (ranks.gpus < 2) return points;
  // nccl-tests' size column: the whole per-rank buffer, divisible among the ranks in 16-byte steps.
  const std::int64_t unit = 16 * static_cast<std::int64_t>(ranks.gpus);
  const bool hierarchical =
      ranks.nodes > 1 && ranks.gpus > ranks.nodes && ranks.gpus % ranks.nodes == 0;
  for (std::int64_t size = 1 << 12; size <= std::int64_t{1} << 30; size *= 2) {
    const std::int64_t bytes = std::max(size / unit, std::int64_t{1}) * unit;
    for (const char* op : {"all-to-all", "all-reduce", "all-gather", "reduce-scatter"}) {
      points.push_back(exchange_point(op, "equal", ranks.gpus, bytes));
    }
    if (size >= 1 << 20 && ranks.gpus > 2) {
      points.push_back(exchange_point("all-to-all", "uneven", ranks.gpus, bytes));
    }
    if (hierarchical) {
      PointSpec spec = exchange_point("all-to-all", "hierarchical", ranks.gpus, bytes);
      spec.params["nodes"] = ranks.nodes;
      spec.held_bytes *= 1.5;  // a staging buffer
      points.push_back(spec);
    }
  }
  return points;
}

}  // namespace

Suite collectives_suite() {
  return {"collectives",
          "NCCL all-to-all (equal, uneven, hierarchical over nodes), all-reduce, all-gather, "
          "reduce-scatter",
          {"all-to-all", "all-reduce", "all-gather", "reduce-scatter"},
          2,
          collective_points};
}

}  // namespace moesim::kernels::measure
