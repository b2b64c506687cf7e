#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/base/random.hpp"
#include "sim/base/simd.hpp"
#include "sim/routing/rules/layer_sample.hpp"

namespace moesim::routing {

// How many tokens to sample of a layer: enough for 512 routes of an expert on average, so that its
// share in the sample has a standard error of 4.4 %, and to represent how often experts meet in a
// token; a power of two, 8,192 to 32,768.
std::int64_t sampled_tokens(int experts, int top_k);

// The shares of experts from those of a sample of tokens, without most of its noise. The logit of a
// share is taken as a quadratic function of the expert's offset (LogitSource::offsets) plus
// a term of its group plus a term of its own: the function is fitted, and of the terms what is left
// is reduced to the variance that the noise of sampling does not explain (empirical Bayes).
// `groups` equal groups of neighbouring experts.
std::vector<double> smoothed_shares(const LayerSample& sample, std::span<const float> offsets,
                                    int groups, int top_k);

// Where the experts of an expert-parallel group are.
struct ExpertPlaces {
  int experts = 0;
  int ranks = 1;          // expert e on rank e / (experts / ranks)
  int ranks_of_node = 1;  // 0: copies are not counted
  int groups = 1;         // groups of neighbouring experts, to keep an edited token inside them
  int columns() const { return experts + (ranks_of_node > 0 ? ranks + nodes() : 0); }
  int nodes() const { return (ranks + ranks_of_node - 1) / ranks_of_node; }
};

// Draws the counts of GPUs whose tokens are independent and alike, from a sample of such tokens:
// a GPU's tokens are tiles of 16 neighbours in the sample, drawn with replacement. Everything that
// is counted of the tokens then has the covariance that it has between tokens of the sample:
// experts that are chosen together, and the tokens that a GPU or node needs once
// (jobs/token_copies.hpp). Means follow from `shares`: before, choices of the sample are exchanged
// until each expert has its share (1 to 3 % of all choices): first all choices of a token in one
// group for the same places of another group, then single ones inside a group.
class SampledCounts {
 public:
  SampledCounts(LayerSample sample, std::span<const double> shares, const ExpertPlaces& places,
                SimdLevel level);

  // The counts of a GPU with `tokens` tokens: [expert], and if copies are counted [rank] and [node]
  // (null: left out). `key`: the stream of all GPUs, which each has blocks of its own of.
  struct Output {
    std::int32_t* experts = nullptr;
    std::int32_t* to_gpu = nullptr;
    std::int32_t* to_node = nullptr;
  };
  void draw(const StreamKey& key, std::uint32_t gpu, std::int64_t tokens, const Output& out);

  const LayerSample& sample() const { return sample_; }

 private:
  void calibrate(std::span<const double> shares);
  void move_group(std::size_t token, std::vector<std::int64_t>& over);
  bool replace(std::size_t token, std::size_t choice, int step);
  void count_tiles();
  void count_token(std::size_t token, std::int32_t* counts);
  void add_tiles(const StreamKey& key, std::uint32_t gpu, std::int64_t tiles);
  void add_many_tiles(const StreamKey& key, std::uint32_t gpu, std::int64_t tiles);

  LayerSample sample_;
  ExpertPlaces places_;
  std::size_t choices_, stride_, tiles_;
  std::vector<std::int32_t> over_;    // [expert]: routes of the sample beyond its share
  std::vector<std::int64_t> routes_;  // [group]: of a token
  std::vector<std::uint8_t> rows_;    // [tile, stride]: experts, ranks, nodes
  std::vector<std::uint16_t> picks_;
  std::vector<std::int32_t> sums_;  // [stride]
  void (*sum_rows_)(const std::uint8_t*, std::size_t, const std::uint16_t*, std::size_t,
                    std::int32_t*);
};

}  // namespace moesim::routing
