#include "kernels/measure/benchmarks/peers.hpp"

#include <fmt/format.h>

#include "sim/base/error.hpp"
#include "sim/base/formats/document.hpp"

namespace moesim::kernels::measure {

namespace {

std::optional<double> median(const Node& peer, const char* key) {
  const std::optional<Node> figures = peer.find(key);
  return figures ? std::optional(figures->positive("median_us")) : std::nullopt;
}

}  // namespace

PeerRun load_peers(const std::string& path) {
  const Document document = Document::load(path);
  const Node root = document.root();
  if (root.text_or("format", "") != "moesim-gpu-peers") {
    throw UsageError(fmt::format("--peers {}: expected what tests/bench/gpu_peers.py wrote", path));
  }
  PeerRun run{root.text("device"), root.text("version"), {}, {}};
  for (const Node& item : root.items("peers")) {
    Peer peer{item.text("benchmark"), item.text("name"), median(item, "cold"), median(item, "hot")};
    if (!peer.cold_us && !peer.hot_us) item.fail("expected figures, cold or hot");
    run.peers.push_back(std::move(peer));
  }
  for (const Node& item : root.items("missing")) {
    run.missing.push_back({item.text("benchmark"), item.text("name"), item.text("reason")});
  }
  return run;
}

const std::vector<PublishedTime>& published_times() {
  static const std::vector<PublishedTime> all = {
      {"choose-top8-e256", 22.5, "softmax and top-k, H100; source not recorded"},
      {"route-top8-e256", 20.5,
       "TensorRT-LLM's routing with histogram and permutation, GPU not stated; FlashInfer pull "
       "request 3751"},
      {"permute-top8-h7168", 220,
       "with the rows' order, 128 experts, H200; TileOPs pull request 2125"},
  };
  return all;
}

}  // namespace moesim::kernels::measure
