#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "sim/base/random.hpp"
#include "sim/base/statistics.hpp"
#include "sim/routing/jobs/layer_routing.hpp"

namespace moesim::support {

// Rows of a dropless router, drawn by the seed: in each layer experts differ in popularity
// (log-normal, `skew` its sigma), GPU by GPU by a quarter of that again, and every GPU sends
// exactly `rows` of them. For benchmarks and tests: no routing is simulated.
class SkewedCounts {
 public:
  SkewedCounts(int experts, std::int64_t rows, double skew, std::uint64_t seed)
      : experts_(experts), rows_(rows), skew_(skew), seed_(seed) {
    for (std::size_t at = 0; at < table_size; ++at) {
      // Quantiles of the normal, so that a draw is one look-up.
      const double share = (static_cast<double>(at) + 0.5) / table_size;
      table_[at] = static_cast<float>(std::exp(skew / 4 * normal_quantile(share)));
    }
  }

  // kept_rows of `layers` layers over `gpus` GPUs; those of one `period` repeat on all others where
  // it is not 0. `scenario` draws again.
  routing::ReplicaRouting draw(int layers, int gpus, std::uint32_t scenario, int period = 0) const {
    routing::ReplicaRouting routing;
    routing.layers.resize(static_cast<std::size_t>(layers));
    for (int layer = 0; layer < layers; ++layer) {
      std::vector<std::int32_t>& kept = routing.layers[static_cast<std::size_t>(layer)].kept_rows;
      kept.resize(static_cast<std::size_t>(gpus) * static_cast<std::size_t>(experts_));
      const std::vector<float> popularity = popularities(layer, scenario);
      for (int gpu = 0; gpu < gpus; ++gpu) {
        std::int32_t* row =
            kept.data() + static_cast<std::size_t>(gpu) * static_cast<std::size_t>(experts_);
        draw_gpu(popularity, layer, period > 0 ? gpu % period : gpu, scenario, row);
      }
    }
    return routing;
  }

 private:
  static constexpr std::size_t table_size = 4096;

  std::vector<float> popularities(int layer, std::uint32_t scenario) const {
    Stream stream({seed_, Purpose::test_data, scenario, static_cast<std::uint32_t>(layer), 0});
    std::vector<float> popularity;
    for (int expert = 0; expert < experts_; ++expert) {
      popularity.push_back(static_cast<float>(std::exp(skew_ * stream.normal())));
    }
    return popularity;
  }

  void draw_gpu(const std::vector<float>& popularity, int layer, int gpu, std::uint32_t scenario,
                std::int32_t* row) const {
    const auto experts = static_cast<std::size_t>(experts_);
    const StreamKey key{seed_, Purpose::test_data, scenario, static_cast<std::uint32_t>(layer),
                        static_cast<std::uint32_t>(gpu) + 1};
    float weight[max_experts];
    float sum = 0;
    for (std::size_t expert = 0; expert < experts; expert += 8) {
      // Two draws of 12 bits and a remainder from each word.
      const PhiloxBlock block = philox_block(key, expert / 8);
      for (std::size_t lane = 0; lane < 8 && expert + lane < experts; ++lane) {
        const std::uint32_t word = block[lane / 2] >> (lane % 2 * 16);
        weight[expert + lane] = popularity[expert + lane] * table_[word % table_size];
        sum += weight[expert + lane];
      }
    }
    const float scale = static_cast<float>(rows_) / sum;
    std::int64_t left = rows_;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      row[expert] = static_cast<std::int32_t>(weight[expert] * scale);
      left -= row[expert];
    }
    // Rounding leaves less than one row per expert: to them in turn, from a place that varies.
    for (std::size_t at = static_cast<std::size_t>(gpu); left > 0; ++at, --left)
      ++row[at % experts];
    for (std::size_t at = 0; left < 0; ++at) {
      if (row[at % experts] > 0) --row[at % experts], ++left;
    }
  }

  static constexpr std::size_t max_experts = 1024;
  int experts_;
  std::int64_t rows_;
  double skew_;
  std::uint64_t seed_;
  float table_[table_size];
};

}  // namespace moesim::support
