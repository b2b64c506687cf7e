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

const char* word(const BenchmarkRow& row) {
  if (row.verdict == Verdict::none) return "";
  if (row.verdict == Verdict::met) return "met";
  return row.bar_met ? "UNMET: a peer is faster" : "UNMET";
}

std::optional<double> times_as_long(const std::optional<double>& peer_us,
                                    const std::optional<Figures>& ours) {
  if (!peer_us || !ours) return std::nullopt;
  return *peer_us / ours->summary.median;
}

PeerRatio compare(const Peer& peer, const Point& point, bool hot) {
  PeerRatio ratio{peer, times_as_long(peer.cold_us, point.cold),
                  times_as_long(peer.hot_us, point.hot), hot};
  if (!ratio.judged()) ratio.by_hot = !hot;
  return ratio;
}

// "cold 45.41 us (0.97 times ours), hot 44.02 us (0.98 times ours), judged hot".
std::string words(const PeerRatio& ratio) {
  std::string out;
  const auto add = [&out](const char* kind, const std::optional<double>& time_us,
                          const std::optional<double>& times) {
    if (!time_us) return;
    out += fmt::format("{}{} {:.2f} us", out.empty() ? "" : ", ", kind, *time_us);
    if (times) out += fmt::format(" ({:.2f} times ours)", *times);
  };
  add("cold", ratio.peer.cold_us, ratio.cold);
  add("hot", ratio.peer.hot_us, ratio.hot);
  return out + (ratio.judged() ? ratio.by_hot ? ", judged hot" : ", judged cold" : ", not judged");
}

// What a table says below the line of a benchmark.
std::string beside(const BenchmarkRow& row, const std::vector<MissingPeer>& missing) {
  std::string out;
  for (const PeerRatio& ratio : row.peers) {
    out += fmt::format("  {:<52} {}\n", ratio.peer.name, words(ratio));
  }
  for (const MissingPeer& peer : missing) {
    if (peer.benchmark != row.id) continue;
    out += fmt::format("  {:<52} missing: {}\n", peer.name, peer.reason);
  }
  for (const PublishedTime& published : published_times()) {
    if (published.benchmark != row.id) continue;
    out += fmt::format("  {:<52} {:.2f} us, not judged: {}\n", "published", published.time_us,
                       published.source);
  }
  return out;
}

nlohmann::ordered_json as_json(const PeerRatio& ratio) {
  nlohmann::ordered_json out = {{"name", ratio.peer.name}};
  const auto add = [&out](const std::string& kind, const std::optional<double>& time_us,
                          const std::optional<double>& times) {
    if (time_us) out[kind + "_us"] = *time_us;
    if (times) out[kind + "_ratio"] = *times;
  };
  add("cold", ratio.peer.cold_us, ratio.cold);
  add("hot", ratio.peer.hot_us, ratio.hot);
  out["judged"] = ratio.judged() ? nlohmann::ordered_json(ratio.by_hot ? "hot" : "cold") : nullptr;
  return out;
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
  row.hot = point.hot && point.hot->summary.median == *time_us;
  const Summary& summary = (row.hot ? point.hot : point.cold)->summary;
  row.p05_us = summary.p05;
  row.p95_us = summary.p95;
  row.samples = summary.n;
  row.ci95_us = summary.ci95;
  row.bytes_per_second = benchmark.spec.bytes / (1e-6 * row.time_us);
  if (copy_bytes_per_second > 0) row.of_copy = row.bytes_per_second / copy_bytes_per_second;
  if (peak_bytes_per_second > 0) row.of_floor = peak_bytes_per_second / row.bytes_per_second;
  row.bar_met = meets(benchmark.bar, row);
  bool met = row.bar_met;
  bool judged = benchmark.bar.kind != BarKind::none;
  for (const Peer& peer : peers) {
    if (peer.benchmark != benchmark.id) continue;
    row.peers.push_back(compare(peer, point, row.hot));
    const std::optional<double> times = row.peers.back().judged();
    judged = judged || times;
    met = met && (!times || *times > 1);
  }
  if (judged) row.verdict = met ? Verdict::met : Verdict::unmet;
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
      "{}, driver {}, CUDA {}, {}\n{:<21} {:>10} {:<4} {:>10} {:>10} {:>9} {:>8} {:>8}  {:<26} "
      "{}\n",
      device.name, versions.driver, versions.cuda_runtime, date, "benchmark", "median us", "",
      "p05", "p95", "GB/s", "of copy", "x floor", "bar", "verdict");
  if (!peers.empty()) out += fmt::format("peers: {}\n", peers);
  for (const BenchmarkRow& row : rows) {
    if (!row.trouble.empty()) {
      out += fmt::format("{:<21} not measured: {}\n", row.id, row.trouble);
      continue;
    }
    out += fmt::format(
        "{:<21} {:>10.2f} {:<4} {:>10.2f} {:>10.2f} {:>9.0f} {:>7.1f}% {:>8.2f}  {:<26} {}\n",
        row.id, row.time_us, row.hot ? "hot" : "cold", row.p05_us, row.p95_us,
        row.bytes_per_second / 1e9, 100 * row.of_copy, row.of_floor, row.bar, word(row));
    out += beside(row, missing_peers);
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
    out += fmt::format("{},{},{}\n", quoted(row.bar), word(row), quoted(row.trouble));
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
                                {"missing_peers", nlohmann::ordered_json::array()},
                                {"rows", nlohmann::ordered_json::array()}};
  for (const MissingPeer& peer : missing_peers) {
    out["missing_peers"].push_back(
        {{"benchmark", peer.benchmark}, {"name", peer.name}, {"reason", peer.reason}});
  }
  for (const BenchmarkRow& row : rows) {
    nlohmann::ordered_json entry = {{"benchmark", row.id}, {"trouble", row.trouble}};
    if (row.point) entry["point"] = to_json(*row.point);
    if (row.trouble.empty()) {
      entry["time_us"] = row.time_us;
      entry["timed"] = row.hot ? "hot" : "cold";
      entry["bytes_per_second"] = row.bytes_per_second;
      entry["of_copy"] = row.of_copy;
      entry["of_floor"] = row.of_floor;
      entry["bar"] = row.bar;
      entry["verdict"] = word(row);
      entry["peers"] = nlohmann::ordered_json::array();
      for (const PeerRatio& ratio : row.peers) entry["peers"].push_back(as_json(ratio));
    }
    out["rows"].push_back(std::move(entry));
  }
  return out;
}

}  // namespace moesim::kernels::measure
