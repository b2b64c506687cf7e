#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moesim::routing {

// Assigns each token to one expert and the same number of tokens to each expert, so that the sum of
// their scores is the maximum: the assignment of BASE layers (Lewis et al. 2021).
//
// Scores are rounded to steps of 2^-30 and limited to +-65536 (-inf is worse than any of these);
// for these the result is exact. The algorithm starts from the best expert of each token, with
// prices that remove most of the excess, and moves tokens along shortest augmenting paths over the
// experts, from experts with too many to experts with too few, which keeps the sum the maximum for
// the current loads. Cost: O(S E), and O(S + E^2) per token that has to move. Ties: the lower
// expert and token first.
class BalancedAssignment {
 public:
  // `scores`: row-major [tokens, experts], tokens a multiple of experts. Returns the expert of each
  // token; valid until the next call.
  const std::vector<std::uint16_t>& assign(std::span<const float> scores, int experts);

 private:
  void scale(std::span<const float> scores);
  void price();
  void choose_best();
  void list_tokens();
  void enter(std::size_t expert, std::int32_t token);
  void leave(std::size_t expert, std::int32_t token);
  void find_distances();
  void augment();
  bool is_balanced() const;

  std::size_t experts_ = 0;
  std::int64_t tokens_ = 0, wanted_ = 0;         // wanted_: tokens per expert
  std::vector<std::int64_t> score_;              // [token, expert], less the experts' prices
  std::vector<std::uint16_t> assigned_;          // [token]
  std::vector<std::int64_t> load_, price_;       // [expert]
  std::vector<std::vector<std::int32_t>> list_;  // [expert]: its tokens, unordered
  // [from, to]: the loss in the sum when the cheapest token moves, and that token.
  std::vector<std::int64_t> cheapest_;
  std::vector<std::int32_t> mover_;
  std::vector<std::int64_t> distance_, potential_;  // [expert]
  std::vector<std::size_t> before_;                 // [expert], on its shortest path
  std::vector<std::uint8_t> done_;
};

}  // namespace moesim::routing
