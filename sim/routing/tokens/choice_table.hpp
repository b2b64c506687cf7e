#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/base/simd.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"
#include "sim/routing/tokens/tile_rows.hpp"

namespace moesim::routing {

// The experts [first, last) that a rank's tokens may be rectified to, and how many of the best ones
// are needed.
struct LocalExperts {
  int first = 0;
  int last = 0;
  int wanted = 0;
};

// The data of a run of tokens that the router needs: their best experts with probabilities, and the
// same among local experts; no other data of the logits. Tokens are ordered by rank, so that the
// index of a token is its position in the total order.
class ChoiceTable {
 public:
  // Removes all tokens but keeps the memory. Stores `local_sets` sets of local experts, with at
  // most `locals` experts each, per token.
  void reset(int experts, int choices, int local_sets, int locals, std::int64_t tokens);

  // Appends the tokens of the next rank from row-major logits [tokens, experts]. Throws UsageError
  // naming rank and token for a logit that is NaN or +inf; logits that are all -inf count as all
  // equal.
  void append_logits(std::span<const float> logits, std::int64_t tokens, int rank,
                     std::span<const LocalExperts> local, const TileKernels& kernels);

  // Appends the tokens of the next rank, tile by tile: `fill(first token of the tile, tile)` writes
  // [expert][16] logits without NaN or +inf.
  template <typename Fill>
  void append_tiles(std::int64_t tokens, int rank, std::span<const LocalExperts> local,
                    const TileKernels& kernels, Fill&& fill) {
    const std::size_t begin = static_cast<std::size_t>(rank_begin_.back());
    for (std::int64_t token = 0; token < tokens; token += tile_tokens) {
      fill(token, tile_.data());
      const int valid =
          static_cast<int>(tokens - token < tile_tokens ? tokens - token : tile_tokens);
      append_tile(begin + static_cast<std::size_t>(token), token, valid, rank, local, kernels);
    }
    rank_begin_.push_back(rank_begin_.back() + tokens);
    for (const LocalExperts& set : local) places_.push_back(set.wanted);
  }

  // Appends `tokens` tokens of the next rank from given choices, [recorded tokens, held], best
  // first, of which the first choices() are used; further tokens repeat the recorded ones. Without
  // probabilities each of the `held` choices has 1 / held. The table has no local experts then.
  void append_choices(std::span<const std::uint16_t> expert, std::span<const float> probability,
                      int held, std::int64_t tokens);

  // Appends the tokens of the next rank, whose choices the caller makes: `choose(first token, out)`
  // writes 16 tokens' choices. No local experts.
  template <typename Choose>
  void append_chosen(std::int64_t tokens, Choose&& choose) {
    const std::size_t begin = static_cast<std::size_t>(rank_begin_.back());
    for (std::int64_t token = 0; token < tokens; token += tile_tokens) {
      const std::size_t at = begin + static_cast<std::size_t>(token);
      choose(token, ChoiceOutput{expert_.data() + at, probability_.data() + at, stride_});
    }
    holds_best_ = false;
    rank_begin_.push_back(rank_begin_.back() + tokens);
  }

  // The output for the local experts of the next tokens, for callers that choose them: the first 16
  // tokens of the next rank are at `token` 0. Only for set 0, `wanted` experts.
  ChoiceOutput local_output(std::int64_t token) {
    const auto at = static_cast<std::size_t>(rank_begin_.back() + token);
    return {local_expert_.data() + at, local_probability_.data() + at, stride_};
  }
  void set_local_places(int wanted) { places_.push_back(wanted); }

  // The output for the largest g of all experts of the next tokens, 16 of them, for callers whose
  // first choice may be another expert. For every tile of every rank, or none.
  float* best_output(std::int64_t token) {
    best_probability_.resize(stride_);
    return best_probability_.data() + static_cast<std::size_t>(rank_begin_.back() + token);
  }

  // Swaps the choices, [choice, stride()], with the caller's vectors of an earlier call: the table
  // has no choices until reset().
  void swap_choices(std::vector<std::uint16_t>& expert, std::vector<float>& probability) {
    expert_.swap(expert);
    probability_.swap(probability);
  }

  int experts() const { return experts_; }
  int choices() const { return choices_; }
  // The number of local experts of the tokens of a rank in a set.
  int local_places(int set, int rank) const {
    const int place = rank * local_sets_ + set;
    return places_[static_cast<std::size_t>(place)];
  }
  int ranks() const { return static_cast<int>(rank_begin_.size()) - 1; }
  std::int64_t tokens() const { return rank_begin_.back(); }
  std::int64_t rank_begin(int rank) const { return rank_begin_[static_cast<std::size_t>(rank)]; }

  // [tokens] each.
  const std::uint16_t* expert(int choice) const {
    return expert_.data() + static_cast<std::size_t>(choice) * stride_;
  }
  const float* probability(int choice) const {
    return probability_.data() + static_cast<std::size_t>(choice) * stride_;
  }
  // Whether the first choices are the best of all experts, so that their g is at least 1 / E.
  bool holds_best() const { return holds_best_; }
  // The largest g of a token: the key of token-max.
  const float* max_probability() const {
    return best_probability_.empty() ? probability(0) : best_probability_.data();
  }
  std::size_t stride() const { return stride_; }  // from one choice to the next
  const std::uint16_t* local_expert(int set, int place) const {
    return local_expert_.data() + local_row(set, place);
  }
  const float* local_probability(int set, int place) const {
    return local_probability_.data() + local_row(set, place);
  }

 private:
  std::size_t local_row(int set, int place) const {
    const auto sets_before = static_cast<std::size_t>(set) * static_cast<std::size_t>(locals_);
    return (sets_before + static_cast<std::size_t>(place)) * stride_;
  }
  void append_tile(std::size_t at, std::int64_t token, int valid, int rank,
                   std::span<const LocalExperts> local, const TileKernels& kernels);
  void repair(std::int64_t token, int valid, int rank, const float* sum);

  int experts_ = 0;
  int choices_ = 0;
  int local_sets_ = 0;
  int locals_ = 0;
  bool holds_best_ = true;
  std::size_t stride_ = 0;
  std::vector<std::int64_t> rank_begin_{0};
  std::vector<int> places_;                             // [rank, set]
  std::vector<std::uint16_t> expert_, local_expert_;    // [choice][stride], [set][place][stride]
  std::vector<float> probability_, local_probability_;  // the same
  std::vector<float> best_probability_;                 // [token]; empty: that of the first choice
  TileRows tile_, scratch_;                             // [experts][16]
};

}  // namespace moesim::routing
