#include "kernels/measure/sessions/benchmark.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/document.hpp"
#include "sim/base/error.hpp"

namespace moesim::kernels::measure {
namespace {

constexpr std::int64_t tokens = 16384;
constexpr std::int64_t hidden = 4096;
constexpr const char* copy_id = "device-copy";

Benchmark device_copy() {
  Benchmark copy{copy_id, {}, {}, ""};
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
                               {BarKind::times_byte_floor, 1.5});
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

Benchmark rows(const char* op, std::int64_t k) {
  constexpr std::int64_t experts = 64;
  Benchmark benchmark{fmt::format("{}-top{}", op, k), {}, {BarKind::share_of_copy, 0.8}, ""};
  const std::int64_t slots = experts * ((k * tokens + experts - 1) / experts);
  // The backward of combine reads the rows as well, for the weights' gradients.
  const bool reads_rows = benchmark.id.starts_with("combine-backward");
  const std::int64_t bytes = 2 * hidden * (tokens + (reads_rows ? 2 : 1) * slots);
  benchmark.spec.op = op;
  benchmark.spec.params = {{"dtype", "bf16"},
                           {"router", fmt::format("top{}", k)},
                           {"capacity_factor", std::to_string(k)},
                           {"tokens", tokens},
                           {"hidden", hidden},
                           {"experts", experts},
                           {"rows", slots},
                           {"bytes", bytes}};
  benchmark.spec.bytes = static_cast<double>(bytes);
  return benchmark;
}

std::vector<Benchmark> make_benchmarks() {
  constexpr Bar capacity{BarKind::microseconds, 10};
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
  // From logits to slots and weights, all launches: 24 bytes more per choice than `choose`.
  for (const char* router : {"top2", "top2+fr", "top2+ir", "top2+fr+ir"}) {
    const bool fills = std::string(router).find("fr") != std::string::npos;
    all.push_back(routed(fmt::format("route-{}", router), "route", router, 64, "1", "token-max",
                         4 * 64 + 34 * (fills ? 3 : 2)));
  }
  all.push_back(
      routed("backward-top2", "router-backward", "top2", 64, "1", "token-max", 8 * 64 + 28));
  for (const char* op : {"permute", "combine", "permute-backward", "combine-backward"}) {
    for (const std::int64_t k : {1, 2}) all.push_back(rows(op, k));
  }
  return all;
}

// Whether the bar is met; nothing to compare with is not.
bool meets(const Bar& bar, const BenchmarkRow& row) {
  switch (bar.kind) {
    case BarKind::none:
      return true;
    case BarKind::microseconds:
      return row.time_us <= bar.value;
    case BarKind::times_byte_floor:
      return row.of_floor > 0 && row.of_floor <= bar.value;
    case BarKind::share_of_copy:
      return row.of_copy >= bar.value;
  }
  return false;
}

std::string words(const Bar& bar) {
  switch (bar.kind) {
    case BarKind::none:
      return "";
    case BarKind::microseconds:
      return fmt::format("at most {:g} us", bar.value);
    case BarKind::times_byte_floor:
      return fmt::format("at most {:g} x byte floor", bar.value);
    case BarKind::share_of_copy:
      return fmt::format("at least {:g} % of copy", 100 * bar.value);
  }
  return "";
}

const char* word(Verdict verdict) {
  return verdict == Verdict::met ? "met" : verdict == Verdict::unmet ? "UNMET" : "";
}

}  // namespace

const std::vector<Benchmark>& kernel_benchmarks() {
  static const std::vector<Benchmark> all = make_benchmarks();
  return all;
}

PeerRun load_peers(const std::string& path) {
  const Document document = Document::load(path);
  const Node root = document.root();
  if (root.text_or("format", "") != "moesim-gpu-peers") {
    throw UsageError(fmt::format("--peers {}: expected what tests/bench/gpu_peers.py wrote", path));
  }
  PeerRun run{root.text("device"), root.text("version"), {}};
  for (const Node& item : root.items("peers")) {
    const double time_us = item.number("median_us");
    if (!(time_us > 0)) throw UsageError(fmt::format("--peers {}: median_us is not above 0", path));
    run.peers.push_back({item.text("benchmark"), item.text("name"), time_us});
  }
  return run;
}

BenchmarkRow judge(const Benchmark& benchmark, const Point& point, double copy_bytes_per_second,
                   double peak_bytes_per_second, const std::vector<Peer>& peers) {
  BenchmarkRow row;
  row.id = benchmark.id;
  row.point = point;
  row.bar = words(benchmark.bar);
  const std::optional<double> time_us = point.time_us();
  if (!time_us) {
    row.trouble = point.verify;
    return row;
  }
  row.time_us = *time_us;
  const bool hot = point.hot && point.hot->summary.median == *time_us;
  const Summary& summary = (hot ? point.hot : point.cold)->summary;
  row.p05_us = summary.p05;
  row.p95_us = summary.p95;
  row.samples = summary.n;
  row.ci95_us = summary.ci95;
  row.bytes_per_second = benchmark.spec.bytes / (1e-6 * row.time_us);
  if (copy_bytes_per_second > 0) row.of_copy = row.bytes_per_second / copy_bytes_per_second;
  if (peak_bytes_per_second > 0) row.of_floor = peak_bytes_per_second / row.bytes_per_second;
  bool met = meets(benchmark.bar, row);
  for (const Peer& peer : peers) {
    if (peer.benchmark != benchmark.id) continue;
    row.peers.emplace_back(peer, peer.time_us / row.time_us);
    met = met && peer.time_us > row.time_us;
  }
  if (benchmark.bar.kind != BarKind::none || !row.peers.empty()) {
    row.verdict = met ? Verdict::met : Verdict::unmet;
  }
  return row;
}

BenchmarkReport run_benchmarks(Device& device, const std::vector<Benchmark>& benchmarks,
                               const PeerRun& peers, std::uint64_t seed,
                               const TrialOptions& options,
                               const std::function<void(const std::string&)>& on_benchmark) {
  BenchmarkReport report;
  report.device = device.facts();
  report.versions = device.versions();
  if (!peers.peers.empty()) {
    if (peers.device != report.device.name) {
      throw UsageError(
          fmt::format("--peers: measured on {}, this is {}", peers.device, report.device.name));
    }
    report.peers = peers.version;
  }
  double copy_bytes_per_second = 0;
  std::vector<Peer> known = peers.peers;
  SoloGroup alone;
  for (const Benchmark& benchmark : benchmarks) {
    if (on_benchmark) on_benchmark(benchmark.id);
    BenchmarkRow row;
    try {
      const Point point = measure_point(device, alone, benchmark.spec, "benchmark", seed, options);
      row = judge(benchmark, point, copy_bytes_per_second, report.device.memory_bytes_per_second,
                  known);
    } catch (const OutOfDeviceMemory& error) {
      row.id = benchmark.id, row.trouble = error.what();
    } catch (const NotMeasurable& error) {
      row.id = benchmark.id, row.trouble = error.what();
    }
    if (benchmark.id == copy_id && row.trouble.empty()) {
      copy_bytes_per_second = row.bytes_per_second;
      row.of_copy = 1;
    }
    if (!benchmark.peer_of.empty() && row.trouble.empty()) {
      known.push_back({benchmark.peer_of, benchmark.id, row.time_us});
    }
    report.rows.push_back(std::move(row));
  }
  return report;
}

bool BenchmarkReport::all_right() const {
  return std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row.trouble.empty(); });
}

bool BenchmarkReport::all_met() const {
  return std::none_of(rows.begin(), rows.end(),
                      [](const auto& row) { return row.verdict == Verdict::unmet; });
}

std::string BenchmarkReport::table() const {
  std::string out = fmt::format(
      "{}, driver {}, CUDA {}, {}\n{:<18} {:>10} {:>10} {:>10} {:>9} {:>8} {:>8}  {:<26} {}\n",
      device.name, versions.driver, versions.cuda_runtime, date, "benchmark", "median us", "p05",
      "p95", "GB/s", "of copy", "x floor", "bar", "verdict");
  for (const BenchmarkRow& row : rows) {
    if (!row.trouble.empty()) {
      out += fmt::format("{:<18} not measured: {}\n", row.id, row.trouble);
      continue;
    }
    out +=
        fmt::format("{:<18} {:>10.2f} {:>10.2f} {:>10.2f} {:>9.0f} {:>7.1f}% {:>8.2f}  {:<26} {}\n",
                    row.id, row.time_us, row.p05_us, row.p95_us, row.bytes_per_second / 1e9,
                    100 * row.of_copy, row.of_floor, row.bar, word(row.verdict));
    for (const auto& [peer, ratio] : row.peers) {
      out += fmt::format("  {:<40} {:>10.2f} us, {:.2f} times as long\n", peer.name, peer.time_us,
                         ratio);
    }
  }
  return out;
}

std::string BenchmarkReport::csv() const {
  std::string out =
      "benchmark,device,driver,date,median_us,p05_us,p95_us,n,bytes_per_second,of_copy,of_floor,"
      "bar,verdict,trouble\n";
  const auto quoted = [](std::string text) {
    std::replace(text.begin(), text.end(), '"', '\'');
    return '"' + text + '"';
  };
  for (const BenchmarkRow& row : rows) {
    out += fmt::format("{},{},{},{},", row.id, quoted(device.name), quoted(versions.driver), date);
    if (row.trouble.empty()) {
      out += fmt::format("{:.7g},{:.7g},{:.7g},{},{:.7g},{:.4g},{:.4g},", row.time_us, row.p05_us,
                         row.p95_us, row.samples, row.bytes_per_second, row.of_copy, row.of_floor);
    } else {
      out += ",,,,,,,";
    }
    out += fmt::format("{},{},{}\n", quoted(row.bar), word(row.verdict), quoted(row.trouble));
  }
  return out;
}

nlohmann::ordered_json BenchmarkReport::json() const {
  nlohmann::ordered_json out = {{"format", "moesim-gpu-benchmarks"},
                                {"date", date},
                                {"device", device.name},
                                {"uuid", device.uuid},
                                {"peak_bytes_per_second", device.memory_bytes_per_second},
                                {"driver", versions.driver},
                                {"cuda_runtime", versions.cuda_runtime},
                                {"peers", peers},
                                {"rows", nlohmann::ordered_json::array()}};
  for (const BenchmarkRow& row : rows) {
    nlohmann::ordered_json entry = {{"benchmark", row.id}, {"trouble", row.trouble}};
    if (row.point) entry["point"] = to_json(*row.point);
    if (row.trouble.empty()) {
      entry["time_us"] = row.time_us;
      entry["bytes_per_second"] = row.bytes_per_second;
      entry["of_copy"] = row.of_copy;
      entry["of_floor"] = row.of_floor;
      entry["bar"] = row.bar;
      entry["verdict"] = word(row.verdict);
      entry["peers"] = nlohmann::ordered_json::array();
      for (const auto& [peer, ratio] : row.peers) {
        entry["peers"].push_back(
            {{"name", peer.name}, {"time_us", peer.time_us}, {"ratio", ratio}});
      }
    }
    out["rows"].push_back(std::move(entry));
  }
  return out;
}

}  // namespace moesim::kernels::measure
