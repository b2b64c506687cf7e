#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/measure/points/device.hpp"
#include "kernels/measure/sessions/trial.hpp"

// The benchmarks of this project's kernels: what is timed, what each is held to, and the table.
namespace moesim::kernels::measure {

// What a benchmark is held to.
enum class BarKind {
  none,
  microseconds,      // at most so many
  times_byte_floor,  // at most so many times its bytes at the device's peak bandwidth
  share_of_copy,     // at least this share of the bandwidth of a device copy in the same run
};
struct Bar {
  BarKind kind = BarKind::none;
  double value = 0;
};

struct Benchmark {
  std::string id;  // "assign-token-max"; what peers name it by
  PointSpec spec;  // its bytes: those that have to move
  Bar bar;
  std::string peer_of;  // id of a later benchmark that is to be faster than this one; "": none
};

// S = 16,384 tokens throughout; the device copy, which is the yardstick, first.
const std::vector<Benchmark>& kernel_benchmarks();

// What another program takes for the same operation on the same device.
struct Peer {
  std::string benchmark;  // Benchmark::id
  std::string name;       // "torch.topk"
  double time_us = 0;
};
struct PeerRun {
  std::string device;
  std::string version;
  std::vector<Peer> peers;
};
// Reads what tests/bench/gpu_peers.py writes. Throws UsageError naming file and key.
PeerRun load_peers(const std::string& path);

enum class Verdict { none, met, unmet };

// One line of the table. A result that was wrong, or that could not be had, has a trouble and no
// figures.
struct BenchmarkRow {
  std::string id;
  std::optional<Point> point;
  std::string trouble;
  double time_us = 0;
  double p05_us = 0;  // of the same samples as time_us, as are those that follow
  double p95_us = 0;
  std::size_t samples = 0;
  std::optional<double> ci95_us;
  double bytes_per_second = 0;
  double of_copy = 0;   // bandwidth against the device copy's; 0: there is none
  double of_floor = 0;  // time against that of its bytes at peak bandwidth; 0: peak not known
  std::string bar;      // "at most 10 us", "" if none
  Verdict verdict = Verdict::none;
  std::vector<std::pair<Peer, double>> peers;  // and how many times as long as ours it takes
};

// `copy_bytes_per_second` and `peak_bytes_per_second` are 0 where they are not known; a bar that
// needs one is then unmet. A peer that is faster is unmet too.
BenchmarkRow judge(const Benchmark& benchmark, const Point& point, double copy_bytes_per_second,
                   double peak_bytes_per_second, const std::vector<Peer>& peers);

struct BenchmarkReport {
  DeviceFacts device;
  Versions versions;
  std::string date;   // ISO 8601, UTC
  std::string peers;  // of which version; "" if there are none
  std::vector<BenchmarkRow> rows;

  bool all_right() const;  // no row has a trouble
  bool all_met() const;    // no row is unmet
  std::string table() const;
  std::string csv() const;
  nlohmann::ordered_json json() const;
};

// Measures `benchmarks` one after the other; one that does not fit or is wrong is a row with a
// trouble. `peers` of another device are refused with UsageError. Throws what a lost device throws.
BenchmarkReport run_benchmarks(Device& device, const std::vector<Benchmark>& benchmarks,
                               const PeerRun& peers, std::uint64_t seed,
                               const TrialOptions& options,
                               const std::function<void(const std::string&)>& on_benchmark = {});

}  // namespace moesim::kernels::measure
