#include "kernels/measure/benchmarks/peers.hpp"

#include <fmt/format.h>

#include "sim/base/document.hpp"
#include "sim/base/error.hpp"

namespace moesim::kernels::measure {

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

}  // namespace moesim::kernels::measure
