#pragma once

#include <optional>
#include <string>
#include <vector>

namespace moesim::kernels::measure {

// What another program takes for the same operation on the same device, timed as this project's
// kernels are: with the L2 flushed, and in a CUDA graph. At least one of the two.
struct Peer {
  std::string benchmark;  // Benchmark::id
  std::string name;       // "PyTorch: softmax, topk"
  std::optional<double> cold_us;
  std::optional<double> hot_us;
};
// One that was not timed.
struct MissingPeer {
  std::string benchmark;
  std::string name;
  std::string reason;
};
struct PeerRun {
  std::string device;
  std::string version;
  std::vector<Peer> peers;
  std::vector<MissingPeer> missing;
};
// Reads what tests/bench/gpu_peers.py writes. Throws UsageError naming file and key.
PeerRun load_peers(const std::string& path);

// What others have published for the same shapes, by their own methods and on their own machines:
// nothing is judged by it.
struct PublishedTime {
  std::string benchmark;
  double time_us = 0;
  std::string source;  // what was timed, where, and who says so
};
const std::vector<PublishedTime>& published_times();

}  // namespace moesim::kernels::measure
