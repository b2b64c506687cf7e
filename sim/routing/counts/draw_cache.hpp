#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/bounded_cache.hpp"
#include "sim/routing/counts/pilot_tokens.hpp"
#include "sim/routing/rules/layer_sample.hpp"

namespace moesim::routing {

// Counts, in as few bytes each as the largest takes. None is negative.
class PackedCounts {
 public:
  explicit PackedCounts(const std::vector<std::int32_t>& counts);
  std::vector<std::int32_t> counts() const;
  std::size_t bytes() const { return packed_.size(); }

 private:
  std::size_t width_ = 1;  // bytes of a count: 1, 2 or 4
  std::vector<std::uint8_t> packed_;
};

// The counts of all GPUs of a layer, [gpu, expert]; nominees: empty without fill-in.
struct PackedRoutes {
  PackedCounts primary, nominees;
  std::size_t bytes() const { return primary.bytes() + nominees.bytes(); }
};

struct KeptShares {
  std::vector<double> of;  // [choice, expert]
  std::size_t bytes() const { return of.size() * sizeof(double); }
};

// A sample of a layer's tokens, and the shares of experts that its counts are to have.
struct SampledLayer {
  LayerSample sample;
  std::vector<double> shares;  // [expert]
  std::size_t bytes() const {
    return sample.expert.size() * sizeof(sample.expert[0]) +
           (sample.shares.size() + shares.size()) * sizeof(double);
  }
};

// What CountRouters of several layouts or routers draw alike, of at most so many bytes. What is
// taken from here has the same bits as what would be drawn. Keys hold all that a value depends on.
// May be used by several threads.
struct DrawCache {
  explicit DrawCache(std::size_t most_bytes)
      : pilots(most_bytes / 2),
        samples(most_bytes / 8),
        shares(most_bytes / 32),
        routes(most_bytes / 32),
        splits(most_bytes / 16 * 5) {}

  PilotCache pilots;
  BoundedCache<std::string, SampledLayer> samples;
  BoundedCache<std::string, KeptShares> shares;
  BoundedCache<std::string, PackedRoutes> routes;
  BoundedCache<std::string, PackedCounts> splits;  // CountRouter::split_of()
};

}  // namespace moesim::routing
