#include "kernels/measure/benchmarks/kernel_benchmarks.hpp"

#include <fmt/format.h>

namespace moesim::kernels::measure {
namespace {

constexpr std::int64_t tokens = 16384;
constexpr std::int64_t hidden = 4096;

Benchmark device_copy() {
  Benchmark copy{device_copy_id, {}, {}, ""};
  constexpr std::int64_t rows = 131072, columns = 4096;  // 1 GiB read, 1 GiB written
  constexpr std::int64_t bytes = std::int64_t{4} * rows * columns;
  copy.spec.op = "memory";
  copy.spec.params = {{"kernel", "streaming"},
                      {"dtype", "bf16"},
                      {"columns", columns},
                      {"rows", rows},
                      {"bytes", bytes}};
  copy.spec.bytes = static_cast<double>(bytes);
  return copy;
}

// `bytes_per_token` of kernels/README.md's table.
Benchmark routed(const std::string& id, const char* op, const char* router, std::int64_t experts,
                 const char* factor, const char* priority, double bytes_per_token, Bar bar = {}) {
  Benchmark benchmark{id, {}, bar, ""};
  benchmark.spec.op = op;
  benchmark.spec.params = {{"router", router},
                           {"tokens", tokens},
                           {"experts", experts},
                           {"capacity_factor", factor},
                           {"priority", priority}};
  benchmark.spec.bytes = bytes_per_token * static_cast<double>(tokens);
  return benchmark;
}

// The gate with its choices, without capacity and weights: x and the weights read, logits and
// choices written.
Benchmark gate() {
  constexpr std::int64_t experts = 64;
  constexpr double per_token = 2.0 * hidden + 4.0 * experts + 20;
  Benchmark benchmark = routed("gate-bf16", "gate", "top2", experts, "2", "token-max", per_token,
                               {BarKind::times_byte_floor, 1.3});
  benchmark.spec.params["hidden"] = hidden;
  benchmark.spec.params["dtype"] = "bf16";
  benchmark.spec.params["alone"] = true;
  benchmark.spec.bytes += 2.0 * experts * hidden;
  return benchmark;
}

// The same by the library's product, with logits that go through memory.
Benchmark gate_by_cublas() {
  Benchmark benchmark = gate();
  benchmark.id = "cublas-gate-bf16";
  benchmark.bar = {};
  benchmark.peer_of = "gate-bf16";
  benchmark.spec.params["cublas"] = true;
  benchmark.spec.bytes += 4.0 * 64 * static_cast<double>(tokens);
  return benchmark;
}

// As many slots as routes: padding stands for the few routes that random logits drop.
Benchmark rows(const std::string& id, const std::string& op, std::int64_t k, std::int64_t count,
               std::int64_t width) {
  constexpr std::int64_t experts = 64;
  Benchmark benchmark{id, {}, {BarKind::share_of_copy, 0.85}, ""};
  const std::int64_t slots = experts * ((k * count + experts - 1) / experts);
  // The backward of combine reads the rows as well, for the weights' gradients.
  const bool reads_rows = op == "combine-backward";
  const std::int64_t bytes = 2 * width * (count + (reads_rows ? 2 : 1) * slots);
  benchmark.spec.op = op;
  benchmark.spec.params = {{"dtype", "bf16"},
                           {"router", fmt::format("top{}", k)},
                           {"capacity_factor", std::to_string(k)},
                           {"tokens", count},
                           {"hidden", width},
                           {"experts", experts},
                           {"rows", slots},
                           {"bytes", bytes}};
  benchmark.spec.bytes = static_cast<double>(bytes);
  return benchmark;
}

// Tokens to their experts' rows, from the gate on: x is read by the gate and by the permute.
Benchmark dispatch() {
  constexpr std::int64_t experts = 64, slots = 2 * tokens;
  Benchmark benchmark = gate();
  benchmark.id = "dispatch-top2";
  benchmark.bar = {};
  benchmark.spec.op = "dispatch";
  benchmark.spec.params.erase("alone");
  benchmark.spec.params["rows"] = slots;
  static_assert(slots % experts == 0);
  // Each route takes 16 bytes to find its slot and weight, beside its row.
  benchmark.spec.bytes += static_cast<double>(2 * hidden * (tokens + slots) + 16 * slots);
  return benchmark;
}

std::vector<Benchmark> make_benchmarks() {
  constexpr Bar capacity{BarKind::microseconds, 5};
  std::vector<Benchmark> all = {device_copy(), gate_by_cublas(), gate()};
  // Logits read, 10 bytes written per choice.
  all.push_back(routed("choose-top2-e64", "choose", "top2", 64, "2", "token-max", 4 * 64 + 20));
  all.push_back(routed("choose-top8-e256", "choose", "top8", 256, "8", "token-max", 4 * 256 + 80));
  // At half the slots, so that there is something to choose; 6 bytes read per choice, 4 written.
  for (const char* priority : {"token-max", "own-score", "position", "random"}) {
    all.push_back(routed(fmt::format("assign-{}", priority), "assign", "top2", 64, "1", priority,
                         20, capacity));
  }
  all.push_back(routed("assign-fill-in", "assign", "top2+fr", 64, "1", "token-max", 30));
  // Half as many slots again as are needed on average: nothing is dropped.
  all.push_back(routed("assign-top8-e256", "assign", "top8", 256, "12", "token-max", 80));
  // From logits to slots and weights, all launches: 24 bytes more per choice than `choose`.
  for (const char* router : {"top2", "top2+fr", "top2+ir", "top2+fr+ir"}) {
    const bool fills = std::string(router).find("fr") != std::string::npos;
    all.push_back(routed(fmt::format("route-{}", router), "route", router, 64, "1", "token-max",
                         4 * 64 + 34 * (fills ? 3 : 2)));
  }
  all.push_back(routed("route-top8-e256", "route", "top8", 256, "12", "token-max", 4 * 256 + 272));
  all.back().spec.params["tokens"] = tokens / 2;  // as others publish it
  all.back().spec.bytes /= 2;
  all.push_back(
      routed("backward-top2", "router-backward", "top2", 64, "1", "token-max", 8 * 64 + 28));
  for (const char* op : {"permute", "combine", "permute-backward", "combine-backward"}) {
    for (const std::int64_t k : {1, 2, 8}) {
      all.push_back(rows(fmt::format("{}-top{}", op, k), op, k, tokens, hidden));
    }
  }
  all.push_back(dispatch());
  // 4,096 tokens as wide as DeepSeek-V3's, for which others publish times.
  for (const char* op : {"permute", "combine"}) {
    all.push_back(rows(fmt::format("{}-top8-h7168", op), op, 8, 4096, 7168));
  }
  return all;
}

}  // namespace

const std::vector<Benchmark>& kernel_benchmarks() {
  static const std::vector<Benchmark> all = make_benchmarks();
  return all;
}

std::vector<PointSpec> sanitizer_points() {
  constexpr std::int64_t few = 200;
  std::vector<PointSpec> points;
  for (const char* kernel : {"streaming", "activation", "normalization"}) {
    PointSpec spec = device_copy().spec;
    spec.params["kernel"] = kernel;
    spec.params["rows"] = few;
    points.push_back(spec);
  }
  for (const Benchmark& benchmark : kernel_benchmarks()) {
    const PointSpec& spec = benchmark.spec;
    if (spec.op == "memory" || spec.params.value("cublas", false)) continue;
    points.push_back(spec);
    points.back().params["tokens"] = few;  // the bytes stay, so that buffers are not rotated
  }
  // Routes that are sorted first, and experts with more of them than a list in shared memory holds.
  for (const char* limit : {"most_looks", "most_listed"}) {
    PointSpec spec = routed("", "assign", "top2+fr", 60, "1", "token-max", 1e3).spec;
    spec.params["tokens"] = few;
    spec.params[limit] = 0;
    points.push_back(spec);
  }
  // Each form of the gate's tile, and experts that fill no warp.
  for (const std::int64_t experts : {8, 60, 128, 256}) {
    PointSpec spec = gate().spec;
    spec.params["tokens"] = few;
    spec.params["hidden"] = 264;
    spec.params["experts"] = experts;
    points.push_back(spec);
    spec = routed("", "route", "top2+fr+ir", experts, "1", "token-max", 1e3).spec;
    spec.params["tokens"] = few;
    points.push_back(spec);
  }
  return points;
}

}  // namespace moesim::kernels::measure
