#pragma once

#include <string>
#include <vector>

namespace moesim::kernels::measure {

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

}  // namespace moesim::kernels::measure
