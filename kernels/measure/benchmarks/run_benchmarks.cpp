#include "kernels/measure/benchmarks/run_benchmarks.hpp"

#include <fmt/format.h>

#include "sim/base/error.hpp"

namespace moesim::kernels::measure {

BenchmarkReport run_benchmarks(Device& device, const std::vector<Benchmark>& benchmarks,
                               const PeerRun& peers, std::uint64_t seed,
                               const BenchmarkOptions& options) {
  BenchmarkReport report;
  report.device = device.facts();
  report.versions = device.versions();
  report.date = options.date;
  report.missing_peers = peers.missing;
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
  const auto add = [&](BenchmarkRow row) {
    report.rows.push_back(std::move(row));
    if (options.on_row) options.on_row(report);
  };
  const double start = device.now_s();
  for (const Benchmark& benchmark : benchmarks) {
    BenchmarkRow row;
    if (options.timeout_s > 0 && device.now_s() - start > options.timeout_s) {
      row.id = benchmark.id, row.late = true;
      row.trouble = fmt::format("the time limit of {:g} s was over", options.timeout_s);
      add(std::move(row));
      continue;
    }
    if (options.on_benchmark) options.on_benchmark(benchmark.id);
    try {
      const Point point =
          measure_point(device, alone, benchmark.spec, "benchmark", seed, options.trial);
      row = judge(benchmark, point, copy_bytes_per_second, report.device.memory_bytes_per_second,
                  known);
    } catch (const OutOfDeviceMemory& error) {
      row.id = benchmark.id, row.trouble = error.what();
    } catch (const NotMeasurable& error) {
      row.id = benchmark.id, row.trouble = error.what();
    }
    if (benchmark.id == device_copy_id && row.trouble.empty()) {
      copy_bytes_per_second = row.bytes_per_second;
      row.of_copy = 1;
    }
    if (!benchmark.peer_of.empty() && row.trouble.empty()) {
      const auto time = [](const std::optional<Figures>& figures) {
        return figures ? std::optional(figures->summary.median) : std::nullopt;
      };
      known.push_back(
          {benchmark.peer_of, benchmark.id, time(row.point->cold), time(row.point->hot)});
    }
    add(std::move(row));
  }
  return report;
}

}  // namespace moesim::kernels::measure
