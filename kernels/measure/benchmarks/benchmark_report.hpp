#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/measure/benchmarks/kernel_benchmarks.hpp"
#include "kernels/measure/benchmarks/peers.hpp"
#include "kernels/measure/devices/device.hpp"

// What came of the benchmarks: verdicts and the table.
namespace moesim::kernels::measure {

enum class Verdict { none, met, unmet };

// A peer beside our kernel, like with like: how many times as long it takes.
struct PeerRatio {
  Peer peer;
  std::optional<double> cold;
  std::optional<double> hot;
  // What the verdict looks at: of the kind that the row's time is, or of the other if the peer has
  // none of that kind.
  bool by_hot = false;
  std::optional<double> judged() const { return by_hot ? hot : cold; }
};

// One line of the table. A result that was wrong, or that could not be had, has a trouble and no
// figures; so has one that there was no time for.
struct BenchmarkRow {
  std::string id;
  std::optional<Point> point;
  std::string trouble;
  bool late = false;  // for lack of time
  double time_us = 0;
  bool hot = false;   // of a CUDA graph, not with the L2 flushed
  double p05_us = 0;  // of the same samples as time_us, as are those that follow
  double p95_us = 0;
  std::size_t samples = 0;
  std::optional<double> ci95_us;
  double bytes_per_second = 0;
  double of_copy = 0;    // bandwidth against the device copy's; 0: there is none
  double of_floor = 0;   // time against that of its bytes at peak bandwidth; 0: peak not known
  std::string bar;       // "at most 10 us", "" if none
  bool bar_met = false;  // apart from its peers; of no bar too
  Verdict verdict = Verdict::none;
  std::vector<PeerRatio> peers;
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
  std::vector<MissingPeer> missing_peers;
  std::vector<BenchmarkRow> rows;

  bool all_right() const;  // no row has a trouble, but for those that are late
  bool any_late() const;
  bool all_met() const;  // no row is unmet
  std::string table() const;
  std::string csv() const;
  nlohmann::ordered_json json() const;
};

}  // namespace moesim::kernels::measure
