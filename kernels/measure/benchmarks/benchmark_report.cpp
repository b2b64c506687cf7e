#include "kernels/measure/benchmarks/benchmark_report.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace moesim::kernels::measure {
namespace {

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

bool BenchmarkReport::all_right() const {
  return std::all_of(rows.begin(), rows.end(),
                     [](const auto& row) { return row.trouble.empty() || row.late; });
}

bool BenchmarkReport::any_late() const {
  return std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.late; });
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
