#include "kernels/measure/benchmarks/run_benchmarks.hpp"

#include <fmt/format.h>

#include "sim/base/error.hpp"

namespace moesim::kernels::measure {

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
    if (benchmark.id == device_copy_id && row.trouble.empty()) {
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

}  // namespace moesim::kernels::measure
